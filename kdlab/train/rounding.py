"""Quantisation-aware training: a student learns with the rounding of its int8 export.

Weights and inputs of convolutions and linear layers are rounded to eight bits as ONNX in int8
rounds them (`kdlab export --to int8`): weights by output channel to -64..64, inputs by tensor
to 0..255, of the range that they have in this batch. Gradients pass as if nothing was rounded
(straight through; Jacob et al., arXiv:1712.05877, section 3). The network itself stays as it is:
only what its layers are given in a training step is changed.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

_LAYERS = frozenset(
    (torch.conv1d, torch.conv2d, torch.conv3d, functional.linear, torch._C._nn.linear)
)
_FIRST = ("input", "weight")  # arguments of all of these, by place or by name
_LEAST = 1e-8  # of a scale: a weight or an input may be all zeros


class EightBits(TorchFunctionMode):
    """Mode in which layers compute with rounded weights and inputs."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        named = dict(kwargs or {})
        if func in _LAYERS:
            operands = [*args, *(named.pop(name) for name in _FIRST[len(args) :])]
            inputs, weight, *rest = operands
            args = (rounded_input(inputs), rounded_weight(weight), *rest)
        return func(*args, **named)


def rounded_weight(weight: Tensor) -> Tensor:
    """Round by output channel, the first dimension, to 129 values around 0."""
    largest = weight.detach().flatten(1).abs().amax(1)
    scale = (largest / 64).clamp_min(_LEAST)
    zero = torch.zeros_like(scale, dtype=torch.int32)
    rounded: Tensor = torch.fake_quantize_per_channel_affine(
        weight, scale, zero, 0, -64, 64
    )
    return rounded


def rounded_input(inputs: Tensor) -> Tensor:
    """Round by tensor, to 256 values of which one is 0."""
    low, high = torch.aminmax(inputs.detach())
    low, high = low.clamp_max(0.0), high.clamp_min(0.0)
    scale = ((high - low) / 255).clamp_min(_LEAST)
    zero = (-low / scale).round().clamp(0, 255).to(torch.int32)
    rounded: Tensor = torch.fake_quantize_per_tensor_affine(inputs, scale, zero, 0, 255)
    return rounded
