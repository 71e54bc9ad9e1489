"""Every network of ProxylessNAS's search space at once (kdlab/models/proxyless.py)."""

from dataclasses import dataclass

from torch import nn

from kdlab.config import register
from kdlab.models.model import IMAGENET, ModelSpec
from kdlab.models.proxyless import MixedBlock, build_network, places


@register("models/proxyless_supernet")
@dataclass(frozen=True, kw_only=True)
class ProxylessSupernet(ModelSpec):
    """Every network of the search space at once; distil it blockwise to search.

    small: strides for images of 64 pixels and less (CIFAR-10).
    """

    statistics = IMAGENET
    small: bool = False

    def architecture(self, num_classes: int, in_chans: int) -> nn.Module:
        every = places(small=self.small)
        return build_network(
            every, [MixedBlock(p) for p in every], num_classes, in_chans, self.small
        )
