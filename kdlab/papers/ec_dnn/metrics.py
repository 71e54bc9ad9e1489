"""What is measured at each communication (section 5.3), and what must hold there."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite

_ROUNDING = 1e-5  # of a cross entropy in float32


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


def time_to(curve: Sequence[Point], error: float) -> float | None:
    """First time at or below an error, along a line between two looks; None: never."""
    before: Point | None = None
    for point in curve:
        if point.error <= error:
            if before is None or point.error == before.error:
                return point.seconds
            share = (before.error - error) / (before.error - point.error)
            return before.seconds + share * (point.seconds - before.seconds)
        before = point
    return None


def speed(curve: Sequence[Point], baseline: Sequence[Point]) -> float:
    """Speed (Table 1): time of MA-DNN_G to its final error over this method's to that error.

    0 when the method never reaches it.
    """
    goal = baseline[-1].error
    own, reference = time_to(curve, goal), time_to(baseline, goal)
    if own is None or reference is None:
        return 0.0
    return reference / max(own, 1e-12)


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
