"""VGG with depthwise-separable convolutions: the student of Pipe-BD's compression workload.

Each convolution of the teacher but the first becomes a 3×3 convolution of each channel by
itself and a 1×1 convolution over all channels (DS-Conv; Howard et al. 2017, MobileNet,
arXiv:1704.04861, section 3.1). Blocks keep their places and widths, so each one can stand
for its teacher's.
"""

from dataclasses import dataclass
from typing import Literal

from torch import nn

from kdlab.config import register
from kdlab.models.cifar_resnet import he_init
from kdlab.models.cifar_vgg import CONVOLUTIONS, Vgg
from kdlab.models.model import ModelSpec


@register("models/separable_vgg")
@dataclass(frozen=True, kw_only=True)
class SeparableVgg(ModelSpec):
    """VGG of depthwise-separable convolutions, for images of 16 pixels and more.

    depth: as the teacher's.
    plain: convolutions at the beginning that stay as they are; the first sees three
        channels, where there is nothing to save.
    """

    depth: Literal[8, 11, 13, 16, 19] = 16
    plain: int = 1

    def architecture(self, num_classes: int, in_chans: int) -> nn.Module:
        net = Vgg(
            CONVOLUTIONS[self.depth],
            num_classes,
            in_chans,
            lambda number, before, after: (
                _plain(before, after) if number < self.plain else _separable(before, after)
            ),
        )
        he_init(net)
        return net


def _plain(before: int, after: int) -> nn.Module:
    return nn.Conv2d(before, after, 3, padding=1)


def _separable(before: int, after: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(before, before, 3, padding=1, groups=before, bias=False),
        nn.BatchNorm2d(before),
        nn.ReLU(inplace=True),
        nn.Conv2d(before, after, 1),
    )
