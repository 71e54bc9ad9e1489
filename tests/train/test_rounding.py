"""Layers that round to eight bits in training, against the same steps in NumPy."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import conv2d

from kdlab.errors import SpecError
from kdlab.train.recipe import Recipe
from kdlab.train.rounding import EightBits, rounded_input, rounded_weight


def test_a_weight_is_rounded_channel_by_channel():
    weight = torch.randn(5, 3, 3, 3) * torch.tensor([1e-3, 1, 10, 0, 1e3]).view(-1, 1, 1, 1)
    w = weight.double().numpy()
    scale = np.abs(w).max((1, 2, 3), keepdims=True) / 64
    expected = np.where(scale > 0, np.round(w / np.where(scale > 0, scale, 1)) * scale, 0)
    rounded = rounded_weight(weight).double().numpy()
    np.testing.assert_allclose(rounded, expected, rtol=1e-4, atol=1e-7)
    assert len(np.unique(rounded[1])) > 10


@pytest.mark.parametrize(("low", "high"), [(0.0, 3.0), (-2.0, 1.0), (1.0, 4.0), (0.0, 0.0)])
def test_an_input_is_rounded_to_256_values_with_0_among_them(low, high):
    inputs = torch.linspace(low, high, 5000)
    rounded = rounded_input(inputs)
    step = (max(high, 0) - min(low, 0)) / 255
    assert (rounded - inputs).abs().max() <= max(step, 1e-6)
    assert len(rounded.unique()) <= 256
    assert rounded_input(torch.cat([inputs, torch.zeros(1)]))[-1] == 0


def test_layers_are_rounded_inside_alone_and_gradients_pass():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 5))
    x = torch.randn(2, 3, 8, 8)
    plain = net(x)
    with EightBits():
        rounded = net(x)
    assert torch.equal(net(x), plain)
    first, last = net[0], net[3]
    by_hand = conv2d(rounded_input(x), rounded_weight(first.weight), first.bias).relu()
    by_hand = rounded_input(by_hand.flatten(1)) @ rounded_weight(last.weight).T + last.bias
    assert torch.allclose(rounded, by_hand, atol=1e-5)
    assert not torch.allclose(rounded, plain, atol=1e-5)
    rounded.square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in net.parameters())


def test_arguments_may_be_named():
    """Some of timm's transformers pass them by name."""
    x, weight = torch.randn(2, 4), torch.randn(3, 4)
    with EightBits():
        named = torch.nn.functional.linear(x, weight=weight)
        placed = torch.nn.functional.linear(x, weight)
        both = torch.nn.functional.linear(input=x, weight=weight, bias=None)
    assert torch.equal(named, placed)
    assert torch.equal(both, placed)


def test_it_begins_after_its_share_of_the_epochs():
    recipe = Recipe(epochs=10, quantise_after=0.5)
    assert [recipe.rounds_at(e) for e in (0.1, 5.0, 5.01, 10.0)] == [
        False,
        False,
        True,
        True,
    ]
    assert Recipe(epochs=10, quantise_after=0.0).rounds_at(0.01)
    assert not Recipe(epochs=10).rounds_at(10)


def test_what_it_cannot_be_with_is_said():
    with pytest.raises(SpecError, match="precision is bf16"):
        Recipe(quantise_after=0.5, precision="bf16")
    with pytest.raises(SpecError, match="compile is True"):
        Recipe(quantise_after=0.5, compile=True)
