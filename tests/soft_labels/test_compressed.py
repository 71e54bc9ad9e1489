import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kdlab.soft_labels.compressed import (
    SampledLabels,
    compress,
    draw,
    expand,
    expand_drawn,
    log_probabilities,
    lost_nats,
)


def logits(seed, classes, scale):
    return np.random.default_rng(seed).normal(size=(5, classes)).astype(np.float32) * scale


@given(st.integers(0, 99), st.integers(3, 40), st.floats(0.1, 20))
def test_top_classes_come_back_exactly_and_the_rest_adds_up(seed, classes, scale):
    full = logits(seed, classes, scale)
    k = max(1, classes // 3)
    back = expand(compress(full, k), classes)
    p, q = np.exp(log_probabilities(full)), np.exp(log_probabilities(back))
    top = np.argsort(-full, axis=1)[:, :k]
    kept_p, kept_q = np.take_along_axis(p, top, 1), np.take_along_axis(q, top, 1)
    assert np.allclose(kept_p, kept_q, rtol=2e-2, atol=1e-3)
    assert np.allclose(1 - kept_p.sum(1), 1 - kept_q.sum(1), atol=2e-2)


@given(st.integers(0, 99), st.integers(4, 30))
def test_more_classes_lose_less(seed, classes):
    full = logits(seed, classes, 3.0)
    assert lost_nats(full, classes - 1) <= lost_nats(full, 1) + 1e-3
    assert lost_nats(full, classes - 1) < 1e-3


def test_extreme_confidence_stays_finite():
    full = np.zeros((1, 10), np.float32)
    full[0, 3] = 1e5
    back = expand(compress(full, 2), 10)
    assert np.isfinite(back).all()
    assert back.argmax() == 3


@pytest.mark.parametrize(
    ("classes", "kind"), [(10, "u1"), (256, "u1"), (257, "u2"), (70_000, "i4")]
)
def test_class_numbers_take_the_fewest_bytes_that_hold_them(classes, kind):
    full = logits(0, classes, 3.0)
    full[:, -1] = 99
    for numbers in (compress(full, 3).classes, draw(full, 3).drawn):
        assert numbers.dtype == np.dtype(kind)
        assert (numbers[:, 0] == classes - 1).all()


@given(st.integers(0, 99), st.integers(2, 300), st.floats(0.1, 20), st.integers(1, 255))
def test_draws_are_labels_and_the_likely_classes_are_in_them(seed, classes, scale, k):
    full = logits(seed, classes, scale)
    drawn = draw(full, k)
    assert drawn.nonsense(classes) == ""
    assert drawn.times.shape == (5, k)
    p, back = np.exp(log_probabilities(full)), np.exp(expand_drawn(drawn, classes))
    assert np.allclose(back.sum(1), 1, atol=1e-4)
    assert (np.abs(back - p) < 1 / k + 1e-5).all()  # nearer than one draw, each class
    assert all(map(np.array_equal, drawn, draw(full, k)))  # the same once more


def test_draws_are_right_on_average_where_top_k_is_not():
    """Many views of one image: what a student sees on average is the teacher's answer."""
    mean = np.log(np.array([0.4, 0.3, 0.1, 0.08, 0.06, 0.04, 0.02], np.float32))
    noise = np.random.default_rng(0).normal(0, 0.3, (20_000, 7))
    full = (mean + noise).astype(np.float32)
    p = np.exp(log_probabilities(full)).mean(0)
    drawn = np.exp(expand_drawn(draw(full, 3), 7)).mean(0)
    topped = np.exp(expand(compress(full, 3), 7)).mean(0)
    assert np.abs(drawn - p).max() < 0.004  # of 60,000 draws
    assert np.abs(topped - p).max() > 0.01


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_no_class_is_drawn_of_what_is_no_number(bad):
    full = logits(0, 10, 1.0)
    full[2, 3] = bad
    with pytest.raises(ValueError, match="not finite"):
        draw(full, 5)


@pytest.mark.parametrize(
    ("drawn", "times", "why"),
    [
        ([[1, 1]], [[1, 1]], "a class twice"),
        ([[1, 0]], [[2, 1]], "3 draws in a label of 2"),
        ([[9, 0]], [[2, 0]], "up to number 9 of 5"),
    ],
)
def test_draws_that_are_no_label_are_said(drawn, times, why):
    labels = SampledLabels(np.array(drawn, np.uint8), np.array(times, np.uint8))
    assert why in labels.nonsense(5)
