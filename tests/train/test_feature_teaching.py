"""Losses between inner outputs in a step: weights, learned or set, and balance."""

import math

import pytest
import torch
from torch import nn

from kdlab.errors import SpecError
from kdlab.features.balance import moments
from kdlab.features.hint import Hint
from kdlab.models.model import Normalised
from kdlab.train.feature_teaching import FeatureHead, FeatureJob, FeatureTeaching

OWN, THEIRS = torch.randn(6, 4), torch.randn(6, 4) * 50


def test_a_learned_weight_begins_where_it_is_set_and_learns():
    head = FeatureHead(Hint(weight=0.5, learn_weight=True), (4,), (4,), None)
    distance = (OWN - THEIRS).square().mean()
    loss = head(OWN, THEIRS)
    assert float(loss) == pytest.approx(0.5 * float(distance) + math.log(2), rel=1e-5)
    (learned,) = head.parameters()
    for _ in range(200):
        learned.grad = None
        head(OWN, THEIRS).backward()
        with torch.no_grad():
            learned -= 0.5 * learned.grad.clamp(-1, 1)
    # The optimum of exp(-s) d + s is s = log d: a loss of large numbers has a small weight.
    assert float(learned) == pytest.approx(math.log(float(distance)), abs=1e-2)
    with pytest.raises(SpecError, match="learn_weight begins with it"):
        Hint(weight=0.0, learn_weight=True)


def test_a_balance_lies_in_the_state_and_comes_back_from_it():
    loss, both = Hint(balance="phi"), (THEIRS, THEIRS * 3)
    heads = [FeatureHead(loss, (4,), (4,), moments(features)) for features in both]
    before = [float(head(OWN, THEIRS)) for head in heads]
    assert before[0] != before[1]
    heads[1].load_state_dict(heads[0].state_dict())
    assert float(heads[1](OWN, THEIRS)) == before[0]


def test_each_loss_has_its_part_of_a_row_and_logits_are_none_of_it():
    net = nn.Sequential(nn.Flatten(), nn.Linear(12, 4))
    model = Normalised(net, (0.5,), (0.5,), 4)
    job = FeatureJob(
        losses=(Hint(projector="none"), Hint(projector="none", weight=3.0)),
        taps=("1", "1"), student_shapes=((4,), (4,)),
        teacher_shapes=((4,), (4,)), classes=2,
    )  # fmt: skip
    teaching = FeatureTeaching(job, model, seed=0)
    row = torch.randn(5, job.outputs)
    out = model(torch.zeros(5, 3, 2, 2, dtype=torch.uint8))
    expected = (out - row[:, 2:6]).square().mean() + 3 * (out - row[:, 6:]).square().mean()
    assert float(teaching(row)) == pytest.approx(float(expected), rel=1e-6)
