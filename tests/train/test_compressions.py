"""Forms of a compressed model: few weights, few bits, a low rank."""

import pytest
import torch
from torch import nn

from kdlab.errors import SpecError
from kdlab.train.compression.distillation import Distillation
from kdlab.train.compression.low_rank import LowRank
from kdlab.train.compression.pruning import Pruning
from kdlab.train.compression.quantisation import Quantisation


@pytest.fixture
def net():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(6, 8, 3), nn.BatchNorm2d(8), nn.Flatten(), nn.Linear(8, 5)
    )


def weights(net):
    return [net[0].weight.detach().clone(), net[3].weight.detach().clone()]


def apart(net, before):
    return [float((a - b).norm()) for a, b in zip(weights(net), before, strict=True)]


def test_distillation_leaves_a_model_as_it_is(net):
    before = weights(net)
    Distillation().reduce(net)
    assert apart(net, before) == [0, 0]


def test_pruning_leaves_the_largest_weights_alone(net):
    before = weights(net)
    Pruning(sparsity=0.75).reduce(net)
    for old, new in zip(before, weights(net), strict=True):
        remaining = new != 0
        assert int(remaining.sum()) == old.numel() - int(0.75 * old.numel())
        assert torch.equal(new[remaining], old[remaining])
        assert float(old[remaining].abs().min()) >= float(old[~remaining].abs().max())


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_quantised_weights_have_so_many_levels_and_are_the_nearest(net, bits):
    before = weights(net)
    Quantisation(bits=bits).reduce(net)
    last = 2 ** (bits - 1) - 1
    for old, new in zip(before, weights(net), strict=True):
        for was, now in zip(old.flatten(1), new.flatten(1), strict=True):
            step = float(was.abs().max()) / last
            assert len(set((now / step).round().int().tolist())) <= 2 * last + 1
            assert float((was - now).abs().max()) <= step / 2 + 1e-7
    again = weights(net)
    Quantisation(bits=bits).reduce(net)
    assert max(apart(net, again)) < 1e-6


def test_no_matrix_of_this_rank_is_nearer(net):
    before = weights(net)
    LowRank(share=0.5).reduce(net)
    for old, new, far in zip(before, weights(net), apart(net, before), strict=True):
        rank = round(0.5 * min(old.flatten(1).shape))
        values = torch.linalg.svdvals(old.flatten(1))
        assert int(torch.linalg.matrix_rank(new.flatten(1), atol=1e-4)) == rank
        assert far == pytest.approx(float(values[rank:].norm()), rel=1e-4)


def test_norms_and_biases_stay(net):
    before = [net[0].bias.clone(), net[1].weight.clone(), net[3].bias.clone()]
    for spec in (Pruning(), Quantisation(bits=2), LowRank(share=0.1)):
        spec.reduce(net)
    assert all(
        torch.equal(a, b)
        for a, b in zip(before, [net[0].bias, net[1].weight, net[3].bias], strict=True)
    )


@pytest.mark.parametrize(
    "make",
    [lambda: Pruning(sparsity=1.0), lambda: Quantisation(bits=1), lambda: LowRank(share=0)],
)
def test_nothing_else_is_taken(make):
    with pytest.raises(SpecError):
        make()
