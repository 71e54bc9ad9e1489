import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import cross_entropy

from kdlab.errors import ShapeError
from kdlab.losses.local import accelerated_compression, diversity_regularised, log_loss
from kdlab.papers.ec_dnn.metrics import check_ensemble


def draw_scores(seed, rows=6, classes=4):
    generator = np.random.default_rng(seed)
    scores, others = generator.normal(size=(2, rows, classes)) * 3
    return scores, np.exp(others) / np.exp(others).sum(1, keepdims=True), generator


def softmax(scores):
    e = np.exp(scores - scores.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


@given(st.integers(0, 10**6), st.floats(0, 2))
def test_both_equations_against_numpy(seed, weight):
    scores, others, generator = draw_scores(seed)
    labels = generator.integers(0, 4, 6)
    p = softmax(scores)
    hard = -np.log(p[np.arange(6), labels]).mean()
    away = np.sqrt(((p - others) ** 2).sum(1)).mean()
    back = -(others * np.log(p)).sum(1).mean()
    s, o, y = torch.tensor(scores), torch.tensor(others), torch.tensor(labels)
    phi = cross_entropy(s, y)
    assert float(diversity_regularised(s, phi, o, weight)) == pytest.approx(
        hard - weight * away, abs=1e-5
    )
    assert float(accelerated_compression(s, phi, o, weight)) == pytest.approx(
        hard + weight * back
    )
    assert float(diversity_regularised(s, phi, None, weight)) == pytest.approx(hard)
    assert log_loss(torch.tensor(p), y) == pytest.approx(hard)


def test_a_model_that_is_the_average_has_a_gradient_that_is_a_number():
    scores = torch.zeros(2, 3, requires_grad=True)
    average = torch.full((2, 3), 1 / 3)
    hard = cross_entropy(scores, torch.tensor([0, 1]))
    diversity_regularised(scores, hard, average, 0.6).backward()
    assert scores.grad is not None
    assert torch.isfinite(scores.grad).all()


def test_the_distance_is_bounded_so_it_cannot_run_away():
    scores = torch.tensor([[1e4, 0.0]])
    hard = cross_entropy(scores, torch.tensor([0]))
    away = diversity_regularised(scores, hard, torch.tensor([[0.0, 1.0]]), 1.0)
    assert float(away) == pytest.approx(-(2**0.5), abs=1e-5)


def test_o8_the_ensemble_is_never_worse_than_the_mean_of_its_models():
    generator = torch.Generator().manual_seed(3)
    for _ in range(50):
        models = [torch.randn(32, 5, generator=generator).mul(4).softmax(1) for _ in "abcd"]
        labels = torch.randint(0, 5, (32,), generator=generator)
        ensemble = torch.stack(models).mean(0)
        check_ensemble(log_loss(ensemble, labels), [log_loss(m, labels) for m in models])


def test_shapes_must_agree():
    scores, hard = torch.zeros(2, 3), torch.tensor(1.0)
    with pytest.raises(ShapeError):
        accelerated_compression(scores, hard, torch.zeros(2, 4), 1.0)
    with pytest.raises(ShapeError):
        diversity_regularised(scores, hard, torch.zeros(1, 3), 1.0)
