"""Several models as one, against the same computation in NumPy."""

import numpy as np
import pytest
import torch
from torch import nn

from kdlab.models.ensemble import Combination, EnsembleModel


class Says(nn.Module):
    """Answers with given logits."""

    def __init__(self, logits):
        super().__init__()
        self.logits = torch.tensor(logits, dtype=torch.float32)

    def forward(self, views):
        return self.logits[: len(views)]


LOGITS = np.random.default_rng(0).normal(0, 3, (3, 6, 5))  # models, samples, classes
BY_CLASS = tuple(map(tuple, np.random.default_rng(1).uniform(0.1, 1, (3, 5)).tolist()))


def combine(weights, by):
    model = EnsembleModel(list(map(Says, LOGITS)), Combination(weights, by))
    return model(torch.zeros(6, 1)).double().numpy()


def softmax(logits):
    exp = np.exp(logits - logits.max(-1, keepdims=True))
    return exp / exp.sum(-1, keepdims=True)


def shares(weights):
    table = np.array(weights)
    return (table / table.sum(0))[:, None]  # models, 1, classes or 1


@pytest.mark.parametrize("weights", [((4.0,), (1.0,), (1.0,)), BY_CLASS])
def test_probabilities_are_averaged_by_weight_of_model_or_class(weights):
    mean = (softmax(LOGITS) * shares(weights)).sum(0)
    np.testing.assert_allclose(np.exp(combine(weights, "probabilities")), mean, rtol=2e-5)


@pytest.mark.parametrize("weights", [((4.0,), (1.0,), (1.0,)), BY_CLASS])
def test_logits_are_averaged_by_weight_of_model_or_class(weights):
    centred = LOGITS - LOGITS.mean(-1, keepdims=True)
    mean = (centred * shares(weights)).sum(0)
    combined = combine(weights, "logits")
    np.testing.assert_allclose(combined, mean, rtol=2e-5, atol=1e-5)
    # A number that is added to all logits of one model says nothing, and changes nothing.
    moved = [LOGITS[0] - 8, *LOGITS[1:]]
    model = EnsembleModel(list(map(Says, moved)), Combination(weights, "logits"))
    np.testing.assert_allclose(
        model(torch.zeros(6, 1)).numpy(), combined, rtol=1e-4, atol=1e-4
    )


def test_the_best_at_what_all_take_it_for_answers_alone():
    mean = (softmax(LOGITS) * shares(BY_CLASS)).sum(0)
    best = np.array(BY_CLASS)[:, mean.argmax(1)].argmax(0)
    assert len(set(best.tolist())) > 1  # not always the same one
    np.testing.assert_allclose(
        combine(BY_CLASS, "best"), LOGITS[best, np.arange(6)], rtol=1e-6
    )
