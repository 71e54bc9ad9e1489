import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kdlab.soft_labels.compressed import compress, expand, log_probabilities, lost_nats


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
