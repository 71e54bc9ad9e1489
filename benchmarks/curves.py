"""Comparisons of two methods by their curves of error against time."""

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
        """Add a figure with a value for each seed; a value of None leaves it undefined."""
        known = [value for value in values if value is not None]
        if len(known) < len(values):
            self.undefined[name] = why
        else:
            self.figures.append(figure(name, known, unit))

    def compare(self, name: str, curves: Sequence[Course], ma: Sequence[Course]) -> None:
        """Compare curves of a method with those of MA-DNN_G, one of each seed."""
        pairs = list(zip(curves, ma, strict=True))
        speeds = [speed(*pair) for pair in pairs]
        self.take(f"speed/{name}", speeds, "times", _near_too_early(ma, "time"))
        target = steep_target([*curves, *ma])
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
        self, name: str, ends: Sequence[Course], ma: Sequence[Course]
    ) -> None:
        """Compare the ends of trainings of several budgets, each with its own schedule."""
        ratios = [speed(*pair) for pair in zip(ends, ma, strict=True)]
        self.take(f"budget_ratio/{name}", ratios, "times", _near_too_early(ma, "budget"))


def _near_too_early(ma: Sequence[Course], of: str) -> str:
    shares = [share for curve in ma if (share := early(curve)) is not None]
    if not shares:
        return ""
    after = " to ".join(
        dict.fromkeys(f"{share:.0%}" for share in (min(shares), max(shares)))
    )
    seeds = f"{len(shares)} of {len(ma)} seeds"
    return f"in {seeds} MA-DNN_G is within a point of its best after {after} of its {of}"


def _ratio(curve: Course, baseline: Course, error: float | None) -> float | None:
    """Time of the baseline to an error, over the time of a method to it."""
    if error is None:
        return None
    method_s, baseline_s = time_to(curve, error), time_to(baseline, error)
    return None if method_s is None or baseline_s is None else baseline_s / method_s


def _ahead(curve: Course, baseline: Course, share: float) -> float | None:
    """Points that a method is better than the baseline, at a share of the time both had."""
    at = share * min(curve[-1].seconds, baseline[-1].seconds)
    error, baseline_error = error_at(curve, at), error_at(baseline, at)
    return None if error is None or baseline_error is None else baseline_error - error


def compared(curves: Trainings, ends: Mapping[str, Sequence[Course]]) -> Readings:
    """Compare the curves of all methods with those of MA-DNN_G.

    Args:
        curves: of trainings with the whole time, by method.
        ends: of each seed the ends of trainings with a part of the time and with all of it.
    """
    read, ma = Readings(), [run.curve("global_") for run in curves["ma"]]
    for name, of in (("ec", "g"), ("ec", "l"), ("e", "g")):
        read.compare(f"{name}_{of}", [run.curve(KEYS[of]) for run in curves[name]], ma)
    for name in ("ec", "e"):
        read.compare_budgets(f"{name}_g", ends[name], ends["ma"])
    return read


def points_of(curves: Trainings) -> dict[str, list[list[tuple[float, float]]]]:
    """Seconds and errors of each seed."""
    return {
        f"{name}_{of}": [
            [(p.seconds, p.error) for p in run.curve(key)] for run in trainings
        ]
        for name, trainings in curves.items()
        for of, key in KEYS.items()
    }


def errors_and_costs(trained: Trainings) -> list[Figure]:
    """Return the figures of a table of methods, with a value for each seed."""

    def last(name: str, key: str) -> list[float]:
        return [getattr(result.last, key) for result in trained[name]]

    figures = [figure("error_pct/s", last("s", "chosen"), "%")]
    for name in ("ec", "ma", "e"):
        for of, key in KEYS.items():
            figures.append(figure(f"error_pct/{name}_{of}", last(name, key), "%"))
        apart = [fmean(result.differences()) for result in trained[name]]
        figures.append(figure(f"diff_lg/{name}", apart, "points"))
    for baseline, of in (("ma", "g"), ("e", "g"), ("ma", "l")):
        pairs = zip(last("ec", KEYS[of]), last(baseline, KEYS[of]), strict=True)
        label = f"points_better/ec_{of}_than_{baseline}_{of}"
        figures.append(figure(label, [b - a for a, b in pairs], "points"))
    ensembles = [*trained["ec"], *trained["e"]]
    for name, those in (("ensemble", ensembles), ("model_average", trained["ma"])):
        # Of rounds at whose end the global model is worse than its models on average (Eq. 7).
        shares = [worse_share(result.differences()) for result in those]
        figures.append(figure(f"worse_than_locals_share/{name}", shares, "share"))
    # The same by the loss: Eq. 3 allows no such round for an ensemble.
    losses = [
        [fmean(look.local_losses) + 1e-5 - look.global_loss for look in result.looks]
        for result in ensembles
    ]
    shares = list(map(worse_share, losses))
    figures.append(figure("larger_loss_than_locals_share/ensemble", shares, "share"))
    # Diff_LC (Eq. 8), the mean over all looks behind a compression.
    diffs = [
        [look.diff_lc for look in result.looks if look.diff_lc is not None]
        for result in trained["ec"]
    ]
    figures.append(figure("diff_lc/ec", [fmean(diff or [0.0]) for diff in diffs], "points"))
    for name, results in trained.items():
        figures.append(figure(f"parallel_s/{name}", last(name, "parallel_s"), "s"))
        for part in ("train_s", "compress_s", "relabel_s", "communication_s"):
            values = [getattr(result.account, part) for result in results]
            figures.append(figure(f"{part}/{name}", values, "s"))
    return figures


def is_steep(curve: Course, error: float) -> bool:
    """Return True where one point less than `error` takes at most a quarter longer."""
    seconds, further = time_to(curve, error), time_to(curve, error - 1)
    if seconds is None or further is None or curve[0].error < error:
        return False
    return further <= _STEEP * seconds


def steep_target(curves: Sequence[Course]) -> float | None:
    """The smallest of 5, 10, ... 95 % that all curves pass steeply; None: there is none."""
    every = (float(e) for e in range(5, 100, 5))
    return next((e for e in every if all(is_steep(curve, e) for curve in curves)), None)


def error_at(curve: Course, seconds: float) -> float | None:
    """Error at a time, along a line between two looks; None before the first and after the end."""
    for before, after in pairwise(curve):
        if before.seconds <= seconds <= after.seconds:
            share = (seconds - before.seconds) / (after.seconds - before.seconds)
            return before.error + share * (after.error - before.error)
    return None
