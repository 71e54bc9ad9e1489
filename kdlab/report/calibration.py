"""Calibration of a classifier, and agreement of two.

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
    """Samples whose largest probability is in one interval."""

    confidence: float  # mean largest probability
    accuracy: float  # share of correct predictions
    count: int


def reliability(
    probabilities: Probabilities, labels: NDArray[np.integer], bins: int = 15
) -> list[Bin]:
    """Return the bins [k/bins, (k+1)/bins), the last including 1, without empty ones.

    Raises:
        ValueError: no samples, or different numbers of rows and labels.
    """
    if not len(labels) or len(probabilities) != len(labels):
        raise ValueError(
            f"{len(probabilities)} rows of probabilities, {len(labels)} labels"
        )
    confidence = probabilities.max(1)
    correct = probabilities.argmax(1) == labels
    bin_index = np.minimum((confidence * bins).astype(int), bins - 1)
    return [
        Bin(float(confidence[rows].mean()), float(correct[rows].mean()), int(rows.sum()))
        for rows in (bin_index == k for k in range(bins))
        if rows.any()
    ]


def expected_calibration_error(
    probabilities: Probabilities, labels: NDArray[np.integer], bins: int = 15
) -> float:
    """Return the sample-weighted mean of |accuracy - confidence| in percent (Eq. 3)."""
    filled = reliability(probabilities, labels, bins)
    distance = sum(b.count * abs(b.accuracy - b.confidence) for b in filled)
    return 100 * distance / len(labels)


@dataclass(frozen=True, slots=True)
class ClassAgreement:
    """Student and teacher on the samples of one class; percent."""

    name: str
    count: int
    agree: float  # same top-1 class, correct or not
    student: float  # top-1
    teacher: float


def agreement(
    student: Probabilities,
    teacher: Probabilities,
    labels: NDArray[np.integer],
    classes: Sequence[str],
) -> list[ClassAgreement]:
    """Return a row for each class that has samples."""
    students, teachers = student.argmax(1), teacher.argmax(1)
    rows = []
    for index, name in enumerate(classes):
        members = labels == index
        if members.any():
            matches = (students == teachers, students == labels, teachers == labels)
            shares = (100 * float(match[members].mean()) for match in matches)
            rows.append(ClassAgreement(name, int(members.sum()), *shares))
    return rows


def disagreements(
    student: Probabilities, teacher: Probabilities, count: int
) -> NDArray[np.int64]:
    """Return the rows with the largest total variation distance, largest first."""
    apart = np.abs(student - teacher).sum(1) / 2
    order: NDArray[np.int64] = np.argsort(-apart, kind="stable")
    return order[:count]
