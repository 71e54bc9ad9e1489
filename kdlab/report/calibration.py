"""How much what a classifier says of itself can be believed, and where two of them differ.

Reliability diagrams and the expected calibration error: Guo et al., "On Calibration of Modern
Neural Networks" (arXiv:1706.04599), section 2, equation 3.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Probabilities = NDArray[np.float64]  # (samples, classes), rows that sum to 1


@dataclass(frozen=True, slots=True)
class Bin:
    """Samples whose largest probability lies in one interval."""

    confidence: float  # mean of it
    accuracy: float  # share that is right
    count: int


def reliability(
    probabilities: Probabilities, labels: NDArray[np.integer], bins: int = 15
) -> list[Bin]:
    """Intervals [k/bins, (k+1)/bins), the last with 1; empty ones are left out.

    Raises:
        ValueError: no samples, or rows and labels of unlike number.
    """
    if not len(labels) or len(probabilities) != len(labels):
        raise ValueError(
            f"{len(probabilities)} rows of probabilities, {len(labels)} labels"
        )
    confidence = probabilities.max(1)
    right = probabilities.argmax(1) == labels
    place = np.minimum((confidence * bins).astype(int), bins - 1)
    return [
        Bin(float(confidence[own].mean()), float(right[own].mean()), int(own.sum()))
        for own in (place == k for k in range(bins))
        if own.any()
    ]


def expected_calibration_error(
    probabilities: Probabilities, labels: NDArray[np.integer], bins: int = 15
) -> float:
    """Mean distance of confidence and accuracy over the samples, in percent (Eq. 3)."""
    found = reliability(probabilities, labels, bins)
    apart = sum(one.count * abs(one.accuracy - one.confidence) for one in found)
    return 100 * apart / len(labels)


@dataclass(frozen=True, slots=True)
class ClassAgreement:
    """Student and teacher on the samples of one class; percent."""

    name: str
    count: int
    agree: float  # the same first choice, right or wrong
    student: float  # top-1
    teacher: float


def agreement(
    student: Probabilities,
    teacher: Probabilities,
    labels: NDArray[np.integer],
    classes: Sequence[str],
) -> list[ClassAgreement]:
    """A row for each class that has samples."""
    mine, theirs = student.argmax(1), teacher.argmax(1)
    rows = []
    for number, name in enumerate(classes):
        own = labels == number
        if own.any():
            right = (mine == theirs, mine == labels, theirs == labels)
            shares = (100 * float(each[own].mean()) for each in right)
            rows.append(ClassAgreement(name, int(own.sum()), *shares))
    return rows


def disagreements(
    student: Probabilities, teacher: Probabilities, count: int
) -> NDArray[np.int64]:
    """Rows where they are furthest apart by total variation, the furthest first."""
    apart = np.abs(student - teacher).sum(1) / 2
    order: NDArray[np.int64] = np.argsort(-apart, kind="stable")
    return order[:count]
