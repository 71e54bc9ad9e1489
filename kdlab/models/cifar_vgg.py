"""VGG with batch norm for 32×32 images: vgg8, vgg11, vgg13, vgg16, vgg19.

Simonyan and Zisserman 2014 (arXiv:1409.1556), table 1, with one linear layer on top
instead of three, as the distillation literature uses it.
"""

from dataclasses import dataclass
from typing import Literal

from torch import Tensor, nn

from kdlab.config import register
from kdlab.models.cifar_resnet import he_init
from kdlab.models.model import ModelSpec

_CHANNELS = (64, 128, 256, 512, 512)
_CONVOLUTIONS = {  # per stage, by depth; depth counts the convolutions and three linears
    8: (1, 1, 1, 1, 1),
    11: (1, 1, 2, 2, 2),
    13: (2, 2, 2, 2, 2),
    16: (2, 2, 3, 3, 3),
    19: (2, 2, 4, 4, 4),
}


@register("models/cifar_vgg")
@dataclass(frozen=True, kw_only=True)
class CifarVgg(ModelSpec):
    """VGG with batch norm for images of 16 pixels and more."""

    depth: Literal[8, 11, 13, 16, 19] = 8

    def architecture(self, num_classes: int, in_chans: int) -> nn.Module:
        return Vgg(_CONVOLUTIONS[self.depth], num_classes, in_chans)


class Vgg(nn.Module):
    def __init__(
        self, convolutions: tuple[int, ...], num_classes: int, in_chans: int
    ) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        before = in_chans
        for count, channels in zip(convolutions, _CHANNELS, strict=True):
            if layers:
                layers.append(nn.MaxPool2d(2))
            for _ in range(count):
                layers += [
                    nn.Conv2d(before, channels, 3, padding=1),
                    nn.BatchNorm2d(channels),
                    nn.ReLU(inplace=True),
                ]
                before = channels
        self.features = nn.Sequential(*layers)
        self.head = nn.Linear(before, num_classes)
        he_init(self)

    def forward(self, x: Tensor) -> Tensor:
        """(N, C, H, W) normalised -> (N, classes)."""
        return self.head(self.features(x).mean(dim=(2, 3)))
