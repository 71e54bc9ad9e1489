import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kdlab.report.calibration import (
    agreement,
    disagreements,
    expected_calibration_error,
    reliability,
)


def test_a_worked_example():
    """Two bins: 0.55 sure and half right, 0.95 sure and all right: (2·0.05 + 2·0.05) / 4."""
    shares = np.array([[0.55, 0.45], [0.55, 0.45], [0.05, 0.95], [0.05, 0.95]])
    labels = np.array([0, 1, 1, 1])
    bins = reliability(shares, labels, bins=10)
    assert [(round(b.confidence, 2), b.accuracy, b.count) for b in bins] == [
        (0.55, 0.5, 2),
        (0.95, 1.0, 2),
    ]
    assert expected_calibration_error(shares, labels, 10) == pytest.approx(5.0)


@given(st.integers(1, 60), st.integers(2, 6), st.integers(0, 99))
def test_every_sample_is_in_one_bin_and_the_error_is_a_share(count, classes, seed):
    chance = np.random.default_rng(seed)
    shares = chance.dirichlet(np.ones(classes), count)
    labels = chance.integers(0, classes, count)
    bins = reliability(shares, labels)
    assert sum(b.count for b in bins) == count
    assert all(1 / classes - 1e-9 <= b.confidence <= 1 for b in bins)
    assert 0 <= expected_calibration_error(shares, labels) <= 100
    right = sum(b.accuracy * b.count for b in bins) / count
    assert right == pytest.approx((shares.argmax(1) == labels).mean())


def test_one_who_is_sure_and_right_is_calibrated():
    labels = np.array([0, 1, 2])
    assert expected_calibration_error(np.eye(3), labels) == 0
    assert expected_calibration_error(np.eye(3)[[1, 2, 0]], labels) == 100
    with pytest.raises(ValueError, match="0 rows"):
        reliability(np.empty((0, 3)), labels[:0])


def test_agreement_by_class_and_the_furthest_apart():
    student = np.array([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]])
    teacher = np.array([[0.8, 0.2], [0.9, 0.1], [0.4, 0.6]])
    labels = np.array([0, 0, 1])
    first, second = agreement(student, teacher, labels, ("cat", "dog", "none of them"))
    assert (first.name, first.count, first.agree) == ("cat", 2, 50.0)
    assert (first.student, first.teacher) == (50.0, 100.0)
    assert (second.agree, second.student, second.teacher) == (0.0, 0.0, 100.0)
    assert list(disagreements(student, teacher, 2)) == [1, 2]
