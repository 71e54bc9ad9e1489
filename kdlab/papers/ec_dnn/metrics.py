"""Metrics of section 5.3, and the check of Eq. 3."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import isfinite

_ROUNDING = 1e-5  # relative, of a cross entropy in float32
_NEAR, _EARLY = 1.0, 0.7  # points of error, and share of the time


def better_than_locals(local_errors: Sequence[float], error: float) -> float:
    """Mean error of the local models minus another error, in points; above 0 that one is better.

    With the error of the global model it is Diff_LG (Eq. 7).
    """
    # Eq. 7: 1/K sum of error_k, minus error_global
    return sum(local_errors) / len(local_errors) - error


def compression_gain(local: Sequence[float], compressed: Sequence[float]) -> float:
    """Diff_LC (Eq. 8): mean over the workers of local minus compressed error, in points."""
    # Eq. 8: both errors of a term are of the same worker k
    pairs = zip(local, compressed, strict=True)
    return sum(before - after for before, after in pairs) / len(local)


def worse_share(differences: Sequence[float]) -> float:
    """Share of communications whose global model is worse than the local average."""
    # 5.3: the red bars of Figs. 1 and 2, over 10 % for MA and none for the ensemble
    return sum(d < 0 for d in differences) / len(differences) if differences else 0.0


@dataclass(frozen=True, slots=True)
class Point:
    """One evaluation of a training, as in Fig. 4."""

    seconds: float  # overall time, relabelling included (5.3)
    error: float  # of the global model on test, in percent


Course = Sequence[Point]


def time_to(curve: Course, error: float) -> float | None:
    """Last time at which the smallest error so far is not below `error`; None: it is never reached.

    A level that lasts counts to its end. Between two evaluations the error is linear.
    """
    # The paper compares times "to achieve the same accuracy" (5.3) and does not define them for
    # curves that rise and fall; here a curve is replaced by its running minimum.
    lowest = list(accumulate((point.error for point in curve), min))
    left = sum(level >= error for level in lowest)  # evaluations until it is below
    if left == len(lowest):  # never below: reached only if it ends exactly there
        return curve[-1].seconds if lowest[-1] == error else None
    if not left:  # below from the first evaluation on
        return curve[0].seconds
    before, after = curve[left - 1].seconds, curve[left].seconds
    share = (lowest[left - 1] - error) / (lowest[left - 1] - lowest[left])
    return before + share * (after - before)


def early(curve: Course) -> float | None:
    """Share of its time after which a training is within a point of its best, if below 70 %.

    A ratio of times to its best error is then not a speed: it was near that error long before.
    """
    # Not in the paper, whose baselines trained until they converged (5.3)
    near = time_to(curve, min(point.error for point in curve) + _NEAR) or 0.0
    share = near / curve[-1].seconds
    return share if share < _EARLY else None


def speed(curve: Course, baseline: Course) -> float | None:
    """Speed of Table 1: the time of MA-DNN_G to its error over this method's time to that error.

    0 where the method never reaches it; None where `early` makes it meaningless. For curves whose
    points are ends of trainings with several budgets it is a ratio of budgets.
    """
    if early(baseline) is not None:
        return None
    # 5.3: "we denote the speed of MA-DNN_G as 1"
    goal = min(point.error for point in baseline)
    seconds = time_to(curve, goal)
    # 5.3: "never achieves the same performance with MA-DNN_G": 0
    return 0.0 if seconds is None else baseline[-1].seconds / max(seconds, 1e-12)


def check_ensemble(ensemble_loss: float, local_losses: Sequence[float]) -> None:
    """Check Eq. 3: the loss of the mean output is at most the mean loss of the models.

    It holds for any models and any loss that is convex in the outputs, such as cross entropy. Only
    mismatched rows, or outputs that are not probabilities, violate it.

    Raises:
        ValueError: it is violated; with both numbers.
    """
    # Right side of Eq. 3: 1/K sum of L(f(w_k; x), y)
    mean = sum(local_losses) / len(local_losses)
    if not isfinite(ensemble_loss) or ensemble_loss > mean + _ROUNDING * max(
        1.0, abs(mean)
    ):
        raise ValueError(
            f"the cross entropy of the ensemble is {ensemble_loss:.6g} and the mean of its "
            f"{len(local_losses)} models is {mean:.6g}; by Eq. 3 it cannot be larger"
        )
