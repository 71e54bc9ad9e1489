"""Blocks of networks with other widths meet: maps by 1x1 convolutions, tokens by linear layers."""

from dataclasses import dataclass

import pytest
import torch
from torch import nn

from kdlab.errors import ModelError
from kdlab.methods.blockwise.cutting import Cuts, cut_both
from kdlab.methods.blockwise.pairs import as_adapted, is_adapted, pairs_of
from kdlab.models.blocks import cut
from kdlab.models.model import ModelSpec
from kdlab.models.timm import TimmModel


@pytest.mark.parametrize(
    ("teacher", "student", "cuts", "size", "kinds"),
    [
        ("vit_small_patch16_224", "vit_tiny_patch16_224", ["blocks.3"], 224, (384, 192, 1)),
        ("convnext_femto", "convnext_atto", ["stages.0", "stages.1"], 64, (48, 40)),
    ],
)
@pytest.mark.long
def test_blocks_of_other_widths_meet_and_are_one_network(
    teacher, student, cuts, size, kinds
):
    torch.manual_seed(0)
    views = torch.randn(2, 3, size, size)
    spec = TimmModel(variant=student)
    large = TimmModel(variant=teacher).architecture(10, 3)
    small = spec.architecture(10, 3)
    pairs = pairs_of(cut(large.eval(), cuts), cut(small.eval(), cuts), views)
    assert is_adapted(pairs)
    network, adapted = as_adapted(pairs, spec, cuts)
    assert adapted.after[0] == (kinds[1], kinds[0], *kinds[2:])
    assert adapted.before[1] == kinds
    inputs = views
    with torch.no_grad():
        for pair in pairs:
            wanted = pair.teacher(inputs)
            assert pair.student(inputs).shape == wanted.shape
            inputs = wanted
    # Its spec builds the same network again, for a file of its weights.
    again = adapted.architecture(10, 3).eval()
    again.load_state_dict(network.state_dict())
    with torch.no_grad():
        assert torch.equal(again(views), network.eval()(views))


class Last(nn.Module):
    """A map whose channels are the last dimension, as Swin's are."""

    def forward(self, x):
        return x.permute(0, 2, 3, 1)


class Halved(nn.Module):
    def forward(self, x):
        return x[:, ::2, ::2]


class Mean(nn.Module):
    def forward(self, x):
        return x.mean((1, 2))


@dataclass(frozen=True, kw_only=True)
class ChannelsLast(ModelSpec):
    width: int

    def architecture(self, num_classes, in_chans):
        wide = self.width
        layers = [nn.Conv2d(in_chans, wide, 2, 2), Last(), nn.Linear(wide, wide), nn.ReLU()]
        layers += [Halved(), nn.Linear(wide, 2 * wide), nn.ReLU()]
        return nn.Sequential(*layers, Mean(), nn.Linear(2 * wide, num_classes))


@pytest.mark.parametrize("shape", [(3, 32, 32), (3, 24, 40)])
def test_maps_with_their_channels_last_are_cut_where_images_are_alike(shape):
    teacher, student = ChannelsLast(width=24), ChannelsLast(width=8)
    cutting = cut_both(
        Cuts((), (), 3, "mse"),
        teacher.build(5, 3),
        student.build(5, 3),
        student,
        shape,
        torch.device("cpu"),
    )
    size = (shape[1] // 2, shape[2] // 2)
    assert all(
        of[:2] in {size, (size[0] // 2, size[1] // 2)} for of in cutting.outputs[:-1]
    )
    assert all(of[2] in {24, 48} for of in cutting.outputs[:-1])
    views = torch.randint(0, 256, (2, *shape), dtype=torch.uint8)
    assert cutting.student(views).shape == (2, 5)


def test_places_that_cannot_meet_are_named():
    views = torch.randn(2, 3, 16, 16)
    teacher = [nn.Conv2d(3, 4, 3, padding=1), nn.Flatten()]
    student = [nn.Conv2d(3, 4, 3, stride=2, padding=1), nn.Flatten()]
    with pytest.raises(
        ModelError, match=r"puts out 4×8×8 where the other network has 4×16×16"
    ):
        pairs_of(teacher, student, views)
