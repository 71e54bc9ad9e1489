"""Losses of pairs of blocks, and stand-ins that begin with the teacher's weights."""

import pytest
import torch
from small_pipelines import cutting
from torch import nn
from torch.nn.functional import mse_loss

from kdlab.methods.blockwise.pairs import (
    RelativeToChannels,
    inherit_variants,
    pairs_of,
    soft_cross_entropy,
    weigh_channels,
)
from kdlab.models.block_variants import VariantBlock


@pytest.mark.parametrize(
    "shape", [(64, 3, 5, 5), (256, 7, 3), (1024, 3)], ids=["maps", "tokens", "flat"]
)
def test_channels_weigh_alike_whatever_they_vary_by(shape):
    """An error of one standard deviation costs 1 in each channel."""
    torch.manual_seed(0)
    scale = torch.tensor([10.0, 1.0, 0.3])
    scale = scale.view(1, 3, 1, 1) if len(shape) == 4 else scale
    outputs = torch.randn(shape) * scale + 7 * scale
    loss = RelativeToChannels.from_outputs(outputs)
    assert float(loss(outputs + scale, outputs)) == pytest.approx(1.0, rel=0.1)
    shifted = outputs.clone()
    shifted[:, 0] += 10 if len(shape) == 4 else 0
    shifted[..., 0] += 10 if len(shape) < 4 else 0
    assert float(loss(shifted, outputs)) == pytest.approx(1 / 3, rel=0.1)


def test_a_channel_that_is_always_the_same_does_not_rule():
    outputs = torch.randn(32, 4, 3, 3)
    outputs[:, 0] = 5.0
    loss = RelativeToChannels.from_outputs(outputs)
    apart = outputs.clone()
    apart[:, 0] += 0.01
    assert float(loss(apart, outputs)) < 0.1


def test_all_blocks_but_the_last_are_weighed():
    pairs = cutting().pairs
    weigh_channels(pairs, torch.randn(16, 1, 8, 8))
    assert [type(pair.loss) is RelativeToChannels for pair in pairs] == [True, True, False]
    assert pairs[-1].loss is soft_cross_entropy
    views = torch.randn(16, 1, 8, 8)
    for pair in pairs[:2]:
        wanted = pair.teacher(views)
        half = wanted + 0.5 * wanted.std((0, 2, 3), keepdim=True)
        assert float(pair.loss(half, wanted)) == pytest.approx(0.25, rel=0.5)
        assert float(mse_loss(half, wanted)) != pytest.approx(0.25, rel=0.5)
        views = wanted


def test_stand_ins_begin_with_what_they_share_behind_other_blocks_too():
    torch.manual_seed(0)
    teachers = [nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 5, 3, padding=1)]
    several = VariantBlock({"same": nn.Conv2d(4, 5, 3, padding=1)})
    pairs = pairs_of(
        teachers, [nn.Conv2d(3, 4, 3, padding=1), several], torch.randn(2, 3, 6, 6)
    )
    inherit_variants(pairs, torch.randn(8, 3, 6, 6))
    assert several.variants["same"].weight.equal(teachers[1].weight)
