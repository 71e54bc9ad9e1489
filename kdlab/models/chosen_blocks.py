"""A network in which a search replaced some blocks by cheaper ones."""

from collections.abc import Iterator
from dataclasses import dataclass

from torch import nn

from kdlab.config import Fault, register
from kdlab.errors import ModelError
from kdlab.models.block_variants import SAME, STAND_INS, pieces_of, stand_in
from kdlab.models.model import ModelSpec


@register("models/chosen_blocks")
@dataclass(frozen=True, kw_only=True)
class ChosenBlocks(ModelSpec):
    """A network with stand-ins for some of its blocks.

    of: the network.
    cuts: modules its blocks end with; the last block is the rest.
    choices: for each block "same", or the name of a stand-in.
    """

    of: ModelSpec
    cuts: tuple[str, ...]
    choices: tuple[str, ...]

    def cross_faults(self) -> Iterator[Fault]:
        yield from super().cross_faults()
        if len(self.choices) != len(self.cuts) + 1:
            count = len(self.cuts) + 1
            yield Fault("choices", f"are {len(self.choices)}, and there are {count} blocks")
        for name in sorted(set(self.choices) - {SAME, *STAND_INS}):
            every = ", ".join((SAME, *STAND_INS))
            yield Fault("choices", f"has {name!r}, must be one of {every}")

    def architecture(self, num_classes: int, in_chans: int) -> nn.Module:
        pieces = pieces_of(self.of, self.cuts, num_classes, in_chans)
        blocks = []
        for number, (piece, name) in enumerate(zip(pieces, self.choices, strict=True)):
            block = stand_in(piece, name)
            if block is None:
                raise ModelError(
                    f"Block {number} of {self.of.component} cannot be {name!r}: that does not fit "
                    "its shapes or its convolutions."
                )
            blocks.append(block)
        return nn.Sequential(*blocks)
