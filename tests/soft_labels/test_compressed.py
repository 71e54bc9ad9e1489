import torch
from hypothesis import given
from hypothesis import strategies as st

from kdlab.soft_labels.compressed import compress, expand, lost_nats


def logits(seed, classes, scale):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn((5, classes), generator=generator) * scale


@given(st.integers(0, 99), st.integers(3, 40), st.floats(0.1, 20))
def test_top_classes_come_back_exactly_and_the_rest_adds_up(seed, classes, scale):
    full = logits(seed, classes, scale)
    k = max(1, classes // 3)
    back = expand(compress(full, k), classes)
    p, q = full.softmax(1), back.softmax(1)
    top = full.topk(k, dim=1).indices
    assert torch.allclose(p.gather(1, top), q.gather(1, top), rtol=2e-2, atol=1e-3)
    rest = lambda x: 1 - x.gather(1, top).sum(1)  # noqa: E731
    assert torch.allclose(rest(p), rest(q), atol=2e-2)


@given(st.integers(0, 99), st.integers(4, 30))
def test_more_classes_lose_less(seed, classes):
    full = logits(seed, classes, 3.0)
    assert lost_nats(full, classes - 1) <= lost_nats(full, 1) + 1e-3
    assert lost_nats(full, classes - 1) < 1e-3


def test_extreme_confidence_stays_finite():
    full = torch.zeros(1, 10)
    full[0, 3] = 1e4
    back = expand(compress(full, 2), 10)
    assert torch.isfinite(back).all()
    assert back.argmax() == 3
