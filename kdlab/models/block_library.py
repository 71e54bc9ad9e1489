"""Stand-ins for every block of a network at once (kdlab/models/block_variants.py)."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from kdlab.config import Fault, register
from kdlab.errors import ModelError
from kdlab.models.block_variants import (
    SAME,
    STAND_INS,
    StandIn,
    VariantBlock,
    pieces_of,
    stand_in,
)
from kdlab.models.model import ModelSpec


@register("models/block_library")
@dataclass(frozen=True, kw_only=True)
class BlockLibrary(ModelSpec):
    """Stand-ins for every block of a network; distil it blockwise, then choose among them.

    of: the network, of the teacher's architecture.
    cuts: modules its blocks end with; the last block is the rest.
    variants: stand-ins to try, for each block those that fit it.
    """

    trained_by: ClassVar[str | None] = "methods/puzzle"

    of: ModelSpec
    cuts: tuple[str, ...]
    variants: tuple[StandIn, ...] = STAND_INS

    def cross_faults(self) -> Iterator[Fault]:
        yield from super().cross_faults()
        if not self.variants or len(set(self.variants)) < len(self.variants):
            yield Fault(
                "variants", f"is {list(self.variants)}; name each once, and one at least"
            )

    def architecture(self, num_classes: int, in_chans: int) -> nn.Module:
        blocks, has_any = [], False
        for piece in pieces_of(self.of, self.cuts, num_classes, in_chans):
            variants: dict[str, nn.Module] = {
                name: module
                for name in self.variants
                if (module := stand_in(piece, name)) is not None
            }
            has_any |= bool(variants)
            if not any(list(variant.parameters()) for variant in variants.values()):
                variants[SAME] = piece.block  # a block needs parameters to train
            blocks.append(VariantBlock(variants))
        if not has_any:
            raise ModelError(
                f"No block of {self.of.component} can be replaced by {', '.join(self.variants)}. "
                f"Try other variants ({', '.join(STAND_INS)}) or other cuts."
            )
        return nn.Sequential(*blocks)
