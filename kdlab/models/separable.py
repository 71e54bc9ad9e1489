"""Any network with depthwise-separable convolutions: Pipe-BD's compression student.

Each spatial convolution becomes one of each channel by itself and a 1×1 convolution over
all channels (DS-Conv; Howard et al. 2017, MobileNet, arXiv:1704.04861, section 3.1). All
else keeps its place and width, so each block can stand for its teacher's.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any

from torch import nn

from kdlab.config import Fault, Range, register
from kdlab.errors import ModelError
from kdlab.models.cifar_resnet import he_init
from kdlab.models.model import ModelSpec


@register("models/separable")
@dataclass(frozen=True, kw_only=True)
class Separable(ModelSpec):
    """A network whose convolutions are made depthwise-separable.

    of: the network.
    plain: convolutions at the beginning that stay as they are; the first one sees three
        channels, where there is nothing to save.
    only: numbers of the spatial convolutions that are made so, from 1 on; empty is all behind
        `plain`. VGG-16 with [2, 3, 8, 9, 11, 12] has 7.3 million parameters and 0.39 billion
        operations for images of 32 pixels, as the student of Pipe-BD's Table II has; with [2, 5]
        it saves the 0.3 million parameters that the one for ImageNet saves.
    """

    of: ModelSpec
    plain: Annotated[int, Range(ge=0)] = 1
    only: tuple[Annotated[int, Range(ge=1)], ...] = ()

    def cross_faults(self) -> Iterator[Fault]:
        yield from super().cross_faults()
        if self.only and self.plain != Separable.plain:
            yield Fault("plain", "has no effect with only")

    def architecture(self, num_classes: int, in_chans: int) -> nn.Module:
        net = self.of.architecture(num_classes, in_chans)
        found = [
            (name, module)
            for name, module in net.named_modules()
            if isinstance(module, nn.Conv2d) and module.kernel_size != (1, 1)
        ]
        numbers = self.only or range(self.plain + 1, len(found) + 1)
        if self.only and max(self.only) > len(found):
            raise ModelError(
                f"only has convolution {max(self.only)}, and {self.of.component} has "
                f"{len(found)} of more than one pixel."
            )
        chosen = [found[n - 1] for n in numbers if found[n - 1][1].groups == 1]
        if not chosen:
            raise ModelError(
                f"{self.of.component} has no convolution behind the first {self.plain} that "
                "could be made depthwise-separable."
            )
        for name, conv in chosen:
            parent, _, last = name.rpartition(".")
            setattr(net.get_submodule(parent), last, separated(conv))
        return net


def separated(conv: nn.Conv2d) -> nn.Module:
    channels = conv.in_channels
    depthwise = like(conv, out_channels=channels, groups=channels)
    pointwise = nn.Conv2d(channels, conv.out_channels, 1, bias=conv.bias is not None)
    made = nn.Sequential(depthwise, nn.BatchNorm2d(channels), nn.ReLU(), pointwise)
    he_init(made)
    return made


def like(conv: nn.Conv2d, **other: Any) -> nn.Conv2d:
    """A fresh convolution that moves over the image as this one does, without a bias."""
    same = ("in_channels", "out_channels", "kernel_size", "stride", "padding", "dilation")
    return nn.Conv2d(
        **{name: getattr(conv, name) for name in same} | {"bias": False} | other
    )
