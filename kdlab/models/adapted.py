"""A student whose blocks stand between adapters to its teacher's channels.

Adapters are 1×1 convolutions of maps, and linear layers of tokens and of maps with their channels
last (transformers). They belong to the student.
"""

from dataclasses import dataclass

from torch import Tensor, nn

from kdlab.config import register
from kdlab.models.blocks import cut
from kdlab.models.model import ModelSpec

CHANNELS_LAST = (0, 0, 1)  # ends the triple (from, to, 1) of channels in the last dimension


class Adapted(nn.Module):
    """A student block between adapters from and to the teacher's channels."""

    def __init__(self, block: nn.Module, before: nn.Module, after: nn.Module) -> None:
        super().__init__()
        self.before, self.block, self.after = before, block, after

    def forward(self, x: Tensor) -> Tensor:
        return self.after(self.block(self.before(x)))


@register("models/adapted")
@dataclass(frozen=True, kw_only=True)
class AdaptedModel(ModelSpec):
    """A student of blockwise distillation with other channels than its teacher.

    student: the network inside.
    cuts: modules its blocks end with; the last block is the rest.
    before, after: (from, to) channels of each block's adapters, with a third number where
        channels are the last dimension; empty is no adapter.
    """

    student: ModelSpec
    cuts: tuple[str, ...]
    before: tuple[tuple[int, ...], ...]
    after: tuple[tuple[int, ...], ...]

    def architecture(self, num_classes: int, in_chans: int) -> nn.Module:
        blocks = cut(self.student.architecture(num_classes, in_chans), self.cuts)
        places = zip(blocks, self.before, self.after, strict=True)
        return nn.Sequential(*(Adapted(b, adapter(i), adapter(o)) for b, i, o in places))


def adapter(channels: tuple[int, ...]) -> nn.Module:
    """Create the adapter of `AdaptedModel`: from the first number of channels to the second."""
    if not channels:
        return nn.Identity()
    if len(channels) == len(CHANNELS_LAST):
        return nn.Linear(channels[0], channels[1])
    return nn.Conv2d(channels[0], channels[1], 1)


def channels_of(module: nn.Module) -> tuple[int, ...]:
    """Return the channels of an adapter: the inverse of `adapter`."""
    if isinstance(module, nn.Conv2d):
        return module.in_channels, module.out_channels
    if isinstance(module, nn.Linear):
        return module.in_features, module.out_features, *CHANNELS_LAST[2:]
    return ()
