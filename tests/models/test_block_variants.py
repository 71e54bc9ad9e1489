"""Stand-ins for blocks: shapes, what they inherit, and networks made of them."""

import pytest
import torch
from torch import nn

from kdlab.errors import ModelError, SpecError
from kdlab.models.block_library import BlockLibrary
from kdlab.models.block_variants import (
    SAME,
    STAND_INS,
    VariantBlock,
    all_answer,
    pieces_of,
    stand_in,
    variant_blocks,
)
from kdlab.models.chosen_blocks import ChosenBlocks
from kdlab.models.cifar_resnet import CifarResNet
from kdlab.models.timm import TimmModel

NET = CifarResNet(depth=8, width=(8, 8, 16, 32))
CUTS = ("stem", "blocks.0", "blocks.1", "blocks.2")


def parameters(module):
    return sum(p.numel() for p in module.parameters())


@pytest.mark.parametrize("name", STAND_INS)
def test_a_stand_in_has_the_shapes_of_its_block_and_costs_less(name):
    checked = 0
    for piece in pieces_of(NET, CUTS, 10, 3):
        module = stand_in(piece, name)
        if module is None:
            continue
        checked += 1
        out = module.eval()(torch.zeros(3, *piece.before))
        assert tuple(out.shape[1:]) == piece.after
        assert parameters(module) < parameters(piece.block) or not parameters(piece.block)
        if piece.never_negative and name == "linear":
            assert module(torch.randn(3, *piece.before)).min().item() >= 0
    assert checked


def test_only_what_has_the_shape_can_be_skipped():
    pieces = pieces_of(NET, CUTS, 10, 3)
    assert [stand_in(piece, "skip") is not None for piece in pieces] == [
        False,
        True,
        False,
        False,
        False,
    ]
    assert [stand_in(piece, "linear") is not None for piece in pieces] == [
        True,
        True,
        True,
        True,
        False,
    ]
    with pytest.raises(ModelError, match="no stand-in 'magic'"):
        stand_in(pieces[0], "magic")


def test_a_convolution_of_low_rank_begins_as_the_nearest_one():
    torch.manual_seed(0)
    piece = pieces_of(NET, CUTS, 10, 3)[1]
    low_rank = stand_in(piece, "low_rank2")
    several = VariantBlock({"low_rank2": low_rank})
    trained = stand_in(piece, SAME)
    several.inherit(trained, torch.randn(2, *piece.before))
    pair = low_rank.get_submodule("blocks.0.conv1")
    narrow, wide = pair[0].weight, pair[1].weight
    product = torch.einsum("or,rikl->oikl", wide[:, :, 0, 0], narrow)
    weight = trained.state_dict()["blocks.0.conv1.weight"]
    # No matrix of this rank is nearer (Eckart and Young): what is left is the other values.
    values = torch.linalg.svdvals(weight.reshape(8, -1))
    apart = (product - weight).norm()
    torch.testing.assert_close(apart, values[4:].norm(), rtol=1e-4, atol=1e-5)


def test_what_is_shared_with_the_block_is_inherited():
    torch.manual_seed(0)
    piece = pieces_of(NET, CUTS, 10, 3)[2]
    trained, views = piece.block, torch.randn(32, *piece.before)
    library = BlockLibrary(of=NET, cuts=CUTS).architecture(10, 3)
    block = variant_blocks(library)[2]
    fresh = _apart(block.variants["separable"], trained, views)
    block.inherit(trained, views)
    # Its separable convolutions begin as the nearest to the block's
    assert _apart(block.variants["separable"], trained, views) < 0.9 * fresh
    tensors = trained.state_dict()
    separable = block.variants["separable"].state_dict()
    same = [k for k in separable if k in tensors and tensors[k].shape == separable[k].shape]
    assert "blocks.1.shortcut.0.weight" in same
    # Norms behind stand-ins are corrected for what stand-ins put out
    changed = [k for k in same if not torch.equal(separable[k], tensors[k])]
    assert all("running" in key for key in changed)


@torch.no_grad()
def _apart(variant, block, views):
    return float((variant.eval()(views) - block.eval()(views)).square().mean())


def test_in_training_all_answer_and_else_the_one_that_is_shown():
    block = VariantBlock({"skip": nn.Identity(), "linear": nn.Conv2d(4, 4, 1)})
    views = torch.randn(2, 4, 5, 5)
    skipped, convolved = block.train()(views)
    assert torch.equal(skipped, views)
    assert torch.equal(convolved, block.variants["linear"](views))
    block.shown = "linear"
    assert torch.equal(block.eval()(views), convolved)


def test_a_choice_has_the_weights_it_is_given(tmp_path):
    """The names of a chosen network's weights are those of the library's, block by block."""
    library = BlockLibrary(of=NET, cuts=CUTS).architecture(10, 3)
    choices = ("linear", "skip", "separable", "low_rank4", SAME)
    spec = ChosenBlocks(of=NET, cuts=CUTS, choices=choices)
    model = spec.build(10, 3)
    parts = []
    for name, block, piece in zip(
        choices, variant_blocks(library), pieces_of(NET, CUTS, 10, 3), strict=True
    ):
        parts.append(piece.block if name == SAME else block.variants[name])
    model.net.load_state_dict(nn.Sequential(*parts).state_dict())
    views = torch.randn(2, 3, 32, 32)
    composed = nn.Sequential(*parts).eval()
    assert torch.equal(model.net.eval()(views), composed(views))


def test_what_cannot_be_is_said():
    with pytest.raises(ModelError, match="Block 2 of models/cifar_resnet cannot be 'skip'"):
        ChosenBlocks(of=NET, cuts=CUTS, choices=(SAME, SAME, "skip", SAME, SAME)).build(
            10, 3
        )
    with pytest.raises(SpecError, match=r"(?s)there are 5 blocks.*'magic'"):
        ChosenBlocks(of=NET, cuts=CUTS, choices=("magic",))
    with pytest.raises(SpecError, match="name each once, and one at least"):
        BlockLibrary(of=NET, cuts=CUTS, variants=())
    with pytest.raises(
        ModelError, match="No block of models/cifar_resnet can be replaced by skip"
    ):
        BlockLibrary(of=NET, cuts=("blocks.1",), variants=("skip",)).architecture(10, 3)


def test_what_has_nothing_to_train_keeps_its_block_beside():
    library = BlockLibrary(of=NET, cuts=CUTS, variants=("skip",)).architecture(10, 3)
    assert [list(b.variants) for b in variant_blocks(library)] == [
        [SAME],
        ["skip", SAME],
        [SAME],
        [SAME],
        [SAME],
    ]
    assert all(list(block.parameters()) for block in variant_blocks(library))


def test_dropout_of_the_network_is_not_traced_as_if_it_trained():
    of = TimmModel(variant="resnet18", drop_rate=0.5)
    model = ChosenBlocks(of=of, cuts=("layer2",), choices=(SAME, SAME)).build(5, 3).eval()
    views = torch.zeros(2, 3, 64, 64, dtype=torch.uint8)
    assert torch.equal(model(views), model(views))


def test_all_are_measured_where_one_is_shown():
    block = VariantBlock({"skip": nn.Identity(), "linear": nn.Conv2d(4, 4, 1)}).eval()
    views = torch.randn(2, 4, 5, 5)
    with all_answer(block):
        assert len(block(views)) == 2
    assert torch.equal(block(views), views)


@pytest.mark.parametrize(
    ("variant", "cuts"),
    [
        ("mobilenetv3_small_050", ("blocks.0", "blocks.1")),
        ("resnet18", ("layer1", "layer2")),
    ],
)
@pytest.mark.long
def test_networks_of_timm_have_stand_ins(variant, cuts):
    of = TimmModel(variant=variant)
    blocks = variant_blocks(BlockLibrary(of=of, cuts=cuts).architecture(5, 3))
    assert len(blocks) == 3
    assert set(blocks[1].variants) & set(
        STAND_INS
    )  # the last is a head of 1×1 convolutions
