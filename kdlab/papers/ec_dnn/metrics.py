"""What is measured at each communication (section 5.3), and what must hold there."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import isfinite

_ROUNDING = 1e-5  # of a cross entropy in float32
_NEAR, _EARLY = 1.0, 0.7  # points of error, and share of a time


def better_than_locals(local_errors: Sequence[float], other: float) -> float:
    """Mean error of the local models minus that of another one; above 0 that one is better.

    With the global model's error this is Diff_LG (Eq. 7).
    """
    return sum(local_errors) / len(local_errors) - other


def compression_gain(local: Sequence[float], compressed: Sequence[float]) -> float:
    """Diff_LC (Eq. 8): mean over the workers of local minus compressed error."""
    pairs = zip(local, compressed, strict=True)
    return sum(before - after for before, after in pairs) / len(local)


def worse_share(differences: Sequence[float]) -> float:
    """Share of communications whose global model is worse than the local average."""
    return sum(d < 0 for d in differences) / len(differences) if differences else 0.0


@dataclass(frozen=True, slots=True)
class Point:
    """One look at a method: seconds of its overall time, and test error in percent."""

    seconds: float
    error: float


Course = Sequence[Point]


def time_to(curve: Course, error: float) -> float | None:
    """Last time that the smallest error so far is not below `error`; None: it never gets there.

    The smallest error so far never rises, and lies on one level for a while: that counts to its
    end. Between two looks it is read along a line.
    """
    lowest = list(accumulate((point.error for point in curve), min))
    left = sum(level >= error for level in lowest)  # looks until it is below
    if left == len(lowest):
        return curve[-1].seconds if lowest[-1] == error else None
    if not left:
        return curve[0].seconds
    before, after = curve[left - 1].seconds, curve[left].seconds
    share = (lowest[left - 1] - error) / (lowest[left - 1] - lowest[left])
    return before + share * (after - before)


def early(curve: Course) -> float | None:
    """Share of its time after which a training is within a point of its end, if below 70 %.

    Times that others take to its end say then when it came near, not how fast they are.
    """
    near = time_to(curve, min(point.error for point in curve) + _NEAR) or 0.0
    share = near / curve[-1].seconds
    return share if share < _EARLY else None


def speed(curve: Course, baseline: Course) -> float | None:
    """Speed (Table 1): time of MA-DNN_G to its final error over this method's to that error.

    0 when the method never reaches it; None where it is undefined, as `early` has it. Of curves
    whose points are ends of trainings of several budgets it is a ratio of budgets.
    """
    if early(baseline) is not None:
        return None
    goal = min(point.error for point in baseline)
    own = time_to(curve, goal)
    return 0.0 if own is None else baseline[-1].seconds / max(own, 1e-12)


def check_ensemble(ensemble_loss: float, local_losses: Sequence[float]) -> None:
    """Eq. 3: the mean of the outputs is at most as wrong as the models are on average.

    It holds for every convex loss and whatever the models are; only rows that do not belong
    together, or outputs that are no probabilities, break it.

    Raises:
        ValueError: with both numbers.
    """
    mean = sum(local_losses) / len(local_losses)
    if not isfinite(ensemble_loss) or ensemble_loss > mean + _ROUNDING * max(
        1.0, abs(mean)
    ):
        raise ValueError(
            f"the cross entropy of the ensemble is {ensemble_loss:.6g} and the mean of its "
            f"{len(local_losses)} models is {mean:.6g}; by Eq. 3 it cannot be larger"
        )
