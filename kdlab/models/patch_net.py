"""Patches and 1×1 layers, without batch norm: a network whose cost is easy to set."""

from dataclasses import dataclass
from typing import Annotated

from torch import Tensor, nn

from kdlab.config import Range, register
from kdlab.models.model import ModelSpec

_POSITIVE = Range(ge=1)


@register("models/patch_net")
@dataclass(frozen=True, kw_only=True)
class PatchNet(ModelSpec):
    """One convolution over patches, then `depth` layers on each patch, then their mean.

    Its answer to an image does not depend on the batch around it, so a batch may be cut
    over ranks without a difference.

    patch: pixels of a side.
    width: channels.
    depth: layers.
    """

    patch: Annotated[int, _POSITIVE] = 4
    width: Annotated[int, _POSITIVE] = 64
    depth: Annotated[int, _POSITIVE] = 1

    def architecture(self, num_classes: int, in_chans: int) -> nn.Module:
        return _PatchNet(self, num_classes, in_chans)


class _PatchNet(nn.Module):
    def __init__(self, spec: PatchNet, num_classes: int, in_chans: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(in_chans, spec.width, spec.patch, spec.patch)
        layers = [nn.Conv2d(spec.width, spec.width, 1) for _ in range(spec.depth)]
        self.layers = nn.Sequential(*(part for x in layers for part in (x, nn.ReLU())))
        self.head = nn.Linear(spec.width, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """(N, C, H, W) -> (N, classes)."""
        return self.head(self.layers(self.stem(x)).mean(dim=(2, 3)))
