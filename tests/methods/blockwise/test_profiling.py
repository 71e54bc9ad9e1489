"""Blocks are measured at every feasible share, and come out as they went in."""

import copy

import pytest
import torch
from torch import nn

from kdlab.methods.blockwise.pairs import pairs_of
from kdlab.methods.blockwise.profiling import feasible_rows, profiled, unmeasured
from kdlab.models.blocks import cut
from kdlab.train.recipe import Recipe


def test_feasible_rows_are_those_of_even_shares():
    assert feasible_rows(8, 3) == [2, 3, 4, 8]
    assert feasible_rows(2, 5) == [1, 2]


def test_a_profile_has_every_block_and_size_and_changes_nothing():
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU()]
    teacher = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 5))
    student = nn.Sequential(
        nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(1),
        nn.Flatten(), nn.Linear(4, 5),
    )  # fmt: skip
    views = torch.randn(8, 3, 6, 6)
    pairs = pairs_of(cut(teacher, ["2"]), cut(student, ["2"]), views[:2])
    before = [{k: v.clone() for k, v in p.student.state_dict().items()} for p in pairs]
    blocks = profiled(
        pairs,
        views,
        feasible_rows(8, 2),
        steps=4,
        recipe=Recipe(lr=0.1, device="cpu"),
    )
    assert [set(b.teacher_s) for b in blocks] == [{4, 8}, {4, 8}]
    assert all(
        s > 0 for b in blocks for s in (*b.teacher_s.values(), *b.student_s.values())
    )
    assert blocks[0].output_bytes == 4 * 6 * 6 * 4
    assert blocks[0].gradient_bytes == 4 * (3 * 4 + 4 + 4 + 4)
    assert blocks[1].row_bytes > 0
    assert [b.norms for b in blocks] == [1, 0]
    for pair, state in zip(pairs, before, strict=True):
        assert all(torch.equal(v, state[k]) for k, v in pair.student.state_dict().items())


@pytest.mark.parametrize(
    ("optimizer", "copies"),
    [
        ({"momentum": 0.9}, 3),
        ({"momentum": 0.0}, 2),
        ({"optimizer": "adamw"}, 4),
        ({"optimizer": "timm/adamw"}, 4),
        ({"optimizer": "timm/muon"}, 3),  # one momentum of its matrices
    ],
)
def test_the_memory_of_a_block_has_what_its_optimizer_keeps(optimizer, copies):
    net = nn.Sequential(nn.Conv2d(3, 4, 3, bias=False), nn.Flatten(), nn.Linear(64, 5))
    views, weights = torch.randn(2, 3, 6, 6), 4 * 3 * 4 * 9
    pairs = pairs_of(cut(net, ["0"]), cut(copy.deepcopy(net), ["0"]), views)
    recipe = Recipe(lr=0.1, device="cpu", batch=2, **optimizer)
    blocks = profiled(pairs, views, [2], steps=2, recipe=recipe)
    assert blocks[0].fixed_bytes == weights + copies * weights  # the teacher's, and these
    sized = unmeasured(pairs, [(3, 6, 6), (4, 4, 4)], recipe)
    assert [b.fixed_bytes for b in sized] == [b.fixed_bytes for b in blocks]


@pytest.mark.parametrize(
    ("optimizer", "most"),
    [
        ({"optimizer": "timm/adafactor"}, 2.1),  # rows and columns of its second moments
        ({"optimizer": "timm/adamw", "optimizer_options": {"capturable": True}}, 4.0),
    ],
)
def test_what_an_optimizer_of_other_devices_keeps_is_known_here(optimizer, most):
    net = nn.Sequential(nn.Conv2d(3, 4, 3, bias=False), nn.Flatten(), nn.Linear(64, 5))
    pairs = pairs_of(
        cut(net, ["0"]), cut(copy.deepcopy(net), ["0"]), torch.randn(2, 3, 6, 6)
    )
    recipe = Recipe(lr=0.1, device="cpu", batch=2, **optimizer)
    first, _ = unmeasured(pairs, [(3, 6, 6), (4, 4, 4)], recipe)
    assert 2 < first.fixed_bytes / (4 * 3 * 4 * 9) - 1 <= most


def test_a_block_that_follows_has_its_costs():
    """Both networks' outputs are relayed; a block equal to the teacher's runs for both."""
    blocks = {}
    for follows in (False, True):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 5))
        views = torch.randn(2, 3, 6, 6)
        pairs = pairs_of(cut(net, ["1"]), cut(copy.deepcopy(net), ["1"]), views)
        pairs[1].same = True
        for pair in pairs:
            pair.inputs = "student" if follows else "teacher"
        recipe = Recipe(lr=0.1, device="cpu")
        blocks[follows] = profiled(pairs, views, [2], steps=2, recipe=recipe)
    assert blocks[False][1].student_s == {2: 0.0}
    assert blocks[True][1].student_s[2] > 0
    assert [b.output_bytes for b in blocks[False]] == [4 * 4 * 4 * 4, 5 * 4]
    assert [b.output_bytes for b in blocks[True]] == [2 * 4 * 4 * 4 * 4, 2 * 5 * 4]
