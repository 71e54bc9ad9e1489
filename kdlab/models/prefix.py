"""The first blocks of a network as a model of its own: what a pool of teachers can serve."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from kdlab.config import register
from kdlab.models.blocks import cut
from kdlab.models.model import ModelSpec, Statistics


@register("models/prefix")
@dataclass(frozen=True, kw_only=True)
class Prefix(ModelSpec):
    """The outputs of a network's first blocks, side by side in one row per image.

    model: the whole network; `weights` and `sha256` are of its file.
    cuts: modules the blocks end with. The whole network is one more block: with `all` it
        is served too.
    classes: of the whole network.
    all: whether the last block, behind the last cut, belongs to it.
    """

    model: ModelSpec
    cuts: tuple[str, ...]
    classes: int
    all: bool = False

    def architecture(self, num_classes: int, in_chans: int) -> nn.Module:
        return FirstBlocks(
            self.model.architecture(self.classes, in_chans), self.cuts, self.all
        )

    def normalisation(self) -> Statistics:
        mean, std = self.model.normalisation()
        return self.model.mean or mean, self.model.std or std


class FirstBlocks(nn.Module):
    """(N, C, H, W) -> (N, D): each block's output, flat, one after the other.

    Its weights are those of the whole network, under the whole network's names.
    """

    def __init__(self, whole: nn.Module, cuts: Sequence[str], with_last: bool) -> None:
        super().__init__()
        self.whole = whole.eval()
        pieces = cut(whole, cuts)
        self.pieces = nn.ModuleList(pieces if with_last else pieces[:-1])

    def forward(self, views: Tensor) -> Tensor:
        outputs = []
        for piece in self.pieces:
            views = piece(views)
            outputs.append(views.flatten(1))
        return torch.cat(outputs, dim=1)

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> Any:
        """Load the whole network's state into the blocks that share its tensors."""
        return self.whole.load_state_dict(state_dict, strict, assign)
