"""What curves of errors against time say of two methods, and where they say nothing."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import fmean

from kdlab.papers.ec_dnn.metrics import Course, early, speed, time_to, worse_share
from kdlab.report.figures import Figure, figure
from kdlab.report.methods import ErrorCurve

KEYS = {"g": "global_", "l": "chosen"}  # fields of the errors, as the paper calls them
_STEEP = 1.25  # times a time
_AT_PCT = (25, 50, 75, 100)  # of the time that both had

Trainings = Mapping[str, Sequence[ErrorCurve]]  # of each seed, by method


@dataclass(slots=True)
class Readings:
    """Figures with their band over seeds, and why others are undefined."""

    figures: list[Figure] = field(default_factory=list)
    undefined: dict[str, str] = field(default_factory=dict)

    def take(self, name: str, values: Sequence[float | None], unit: str, why: str) -> None:
        """A figure, of a value for each seed; one that is None leaves it undefined."""
        known = [value for value in values if value is not None]
        if len(known) < len(values):
            self.undefined[name] = why
        else:
            self.figures.append(figure(name, known, unit))

    def compare(self, name: str, own: Sequence[Course], ma: Sequence[Course]) -> None:
        """Curves of a method against those of MA-DNN_G, one of each seed."""
        pairs = list(zip(own, ma, strict=True))
        speeds = [speed(*pair) for pair in pairs]
        self.take(f"speed/{name}", speeds, "times", _near_too_early(ma, "time"))
        target = steep_target([*own, *ma])
        why = "no target of 5, 10, ... 95 % is passed by all so that a point less takes at "
        why += "most a quarter longer"
        self.take(f"steep_target_pct/{name}", [target], "%", why)
        ratios = [_ratio(*pair, target) for pair in pairs]
        self.take(f"times_at_target/{name}", ratios, "times", why)
        for pct in _AT_PCT:
            points = [_ahead(*pair, pct / 100) for pair in pairs]
            why = "one of them was not looked at by then"
            self.take(f"points_better_at_{pct}_pct/{name}", points, "points", why)

    def compare_budgets(
        self, name: str, own: Sequence[Course], ma: Sequence[Course]
    ) -> None:
        """The same of ends of trainings of several budgets, each with its own schedule."""
        ratios = [speed(*pair) for pair in zip(own, ma, strict=True)]
        self.take(f"budget_ratio/{name}", ratios, "times", _near_too_early(ma, "budget"))


def _near_too_early(ma: Sequence[Course], of: str) -> str:
    shares = [share for curve in ma if (share := early(curve)) is not None]
    if not shares:
        return ""
    after = f"{min(shares):.0%} to {max(shares):.0%} of its {of}"
    seeds = f"{len(shares)} of {len(ma)} seeds"
    return f"in {seeds} MA-DNN_G is within a point of its end after {after}"


def _ratio(curve: Course, baseline: Course, error: float | None) -> float | None:
    """Time of the baseline to an error, over the time of a method to it."""
    if error is None:
        return None
    own, other = time_to(curve, error), time_to(baseline, error)
    return None if own is None or other is None else other / own


def _ahead(curve: Course, baseline: Course, share: float) -> float | None:
    """Points that a method is better than the baseline, at a share of the time both had."""
    at = share * min(curve[-1].seconds, baseline[-1].seconds)
    own, other = error_at(curve, at), error_at(baseline, at)
    return None if own is None or other is None else other - own


def compared(curves: Trainings, ends: Mapping[str, Sequence[Course]]) -> Readings:
    """All that is read of curves against MA-DNN_G's.

    Args:
        curves: of trainings with the whole time, by method.
        ends: of each seed the ends of trainings with a part of the time and with all of it.
    """
    read, ma = Readings(), [one.curve("global_") for one in curves["ma"]]
    for name, of in (("ec", "g"), ("ec", "l"), ("e", "g")):
        read.compare(f"{name}_{of}", [one.curve(KEYS[of]) for one in curves[name]], ma)
    for name in ("ec", "e"):
        read.compare_budgets(f"{name}_g", ends[name], ends["ma"])
    return read


def points_of(curves: Trainings) -> dict[str, list[list[tuple[float, float]]]]:
    """Seconds and errors of each seed."""
    return {
        f"{name}_{of}": [
            [(p.seconds, p.error) for p in one.curve(key)] for one in trainings
        ]
        for name, trainings in curves.items()
        for of, key in KEYS.items()
    }


def errors_and_costs(trained: Trainings) -> list[Figure]:
    """What a table of methods has, of each seed."""

    def last(name: str, key: str) -> list[float]:
        return [getattr(result.last, key) for result in trained[name]]

    found = [figure("error_pct/s", last("s", "chosen"), "%")]
    for name in ("ec", "ma", "e"):
        for of, key in KEYS.items():
            found.append(figure(f"error_pct/{name}_{of}", last(name, key), "%"))
        apart = [fmean(result.differences()) for result in trained[name]]
        found.append(figure(f"diff_lg/{name}", apart, "points"))
    for other, of in (("ma", "g"), ("e", "g"), ("ma", "l")):
        pairs = zip(last("ec", KEYS[of]), last(other, KEYS[of]), strict=True)
        label = f"points_better/ec_{of}_than_{other}_{of}"
        found.append(figure(label, [b - a for a, b in pairs], "points"))
    ensembles = [*trained["ec"], *trained["e"]]
    for name, those in (("ensemble", ensembles), ("model_average", trained["ma"])):
        # Of rounds at whose end the global model is worse than its models on average (Eq. 7).
        shares = [worse_share(result.differences()) for result in those]
        found.append(figure(f"worse_than_locals_share/{name}", shares, "share"))
    # The same by the loss, where Eq. 3 allows none for an ensemble.
    losses = [
        [fmean(look.local_losses) + 1e-5 - look.global_loss for look in result.looks]
        for result in ensembles
    ]
    shares = list(map(worse_share, losses))
    found.append(figure("larger_loss_than_locals_share/ensemble", shares, "share"))
    # Diff_LC (Eq. 8), the mean over all looks behind a compression.
    each = [
        [look.diff_lc for look in result.looks if look.diff_lc is not None]
        for result in trained["ec"]
    ]
    found.append(figure("diff_lc/ec", [fmean(own or [0.0]) for own in each], "points"))
    for name, results in trained.items():
        found.append(figure(f"parallel_s/{name}", last(name, "parallel_s"), "s"))
        for part in ("train_s", "compress_s", "relabel_s", "communication_s"):
            values = [getattr(result.account, part) for result in results]
            found.append(figure(f"{part}/{name}", values, "s"))
    return found


def is_steep(curve: Course, error: float) -> bool:
    """Whether an error is passed so fast that a point less takes at most a quarter longer."""
    own, further = time_to(curve, error), time_to(curve, error - 1)
    if own is None or further is None or curve[0].error < error:
        return False
    return further <= _STEEP * own


def steep_target(curves: Sequence[Course]) -> float | None:
    """The smallest of 5, 10, ... 95 % that all curves pass steeply; None: there is none."""
    every = (float(e) for e in range(5, 100, 5))
    return next((e for e in every if all(is_steep(one, e) for one in curves)), None)


def error_at(curve: Course, seconds: float) -> float | None:
    """Error at a time, along a line between two looks; None before the first and after the end."""
    for before, after in pairwise(curve):
        if before.seconds <= seconds <= after.seconds:
            share = (seconds - before.seconds) / (after.seconds - before.seconds)
            return before.error + share * (after.error - before.error)
    return None
