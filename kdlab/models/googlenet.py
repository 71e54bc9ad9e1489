"""GoogLeNet as published, without batch norm (Szegedy et al., arXiv:1409.4842).

torchvision's has batch norm after every convolution; EC-DNN (section 5.1) trains the
original on ImageNet. Without its two auxiliary classifiers.
"""

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor, nn

from kdlab.config import Range, register
from kdlab.config.spec import POSITIVE, SHARE
from kdlab.models.model import IMAGENET, ModelSpec
from kdlab.models.nin import begin_plain
from kdlab.models.pixel_mean import mean_layers

# Table 1: 1×1; 3×3 reduce, 3×3; 5×5 reduce, 5×5; pool projection. None is a max pool.
_MODULES: tuple[tuple[int, ...] | None, ...] = (
    (64, 96, 128, 16, 32, 32),
    (128, 128, 192, 32, 96, 64),
    None,
    (192, 96, 208, 16, 48, 64),
    (160, 112, 224, 24, 64, 64),
    (128, 128, 256, 24, 64, 64),
    (112, 144, 288, 32, 64, 64),
    (256, 160, 320, 32, 128, 128),
    None,
    (256, 160, 320, 32, 128, 128),
    (384, 192, 384, 48, 128, 128),
)


@register("models/googlenet")
@dataclass(frozen=True, kw_only=True)
class GoogLeNet(ModelSpec):
    """GoogLeNet without batch norm: 22 layers, for images from 32 pixels on.

    width: factor on all channels; 1 is the published network.
    dropout: before the last layer.
    pixel_mean: side of the images; their mean is then subtracted from each. null does not.
    """

    statistics = IMAGENET
    width: Annotated[float, POSITIVE] = 1.0
    dropout: Annotated[float, SHARE] = 0.4
    pixel_mean: Annotated[int, Range(ge=1)] | None = None

    def architecture(self, num_classes: int, in_chans: int) -> nn.Module:
        net = Net(self.width, self.dropout, num_classes, in_chans)
        net.layers = nn.Sequential(*mean_layers(in_chans, self.pixel_mean), *net.layers)
        return net


class Net(nn.Module):
    def __init__(self, width: float, dropout: float, classes: int, in_chans: int) -> None:
        super().__init__()

        def scaled(channels: int) -> int:
            return max(1, round(width * channels))

        layers: list[nn.Module] = [
            _Convolution(in_chans, scaled(64), 7, stride=2),
            _pool(),
            _Convolution(scaled(64), scaled(64), 1),
            _Convolution(scaled(64), scaled(192), 3),
            _pool(),
        ]
        before = scaled(192)
        for module in _MODULES:
            if module is None:
                layers.append(_pool())
                continue
            widths = [scaled(channels) for channels in module]
            layers.append(Inception(before, widths))
            before = widths[0] + widths[2] + widths[4] + widths[5]
        self.layers = nn.Sequential(*layers)
        self.dropout = nn.Dropout(dropout)
        self.classes = nn.Linear(before, classes)
        begin_plain(self)

    def forward(self, x: Tensor) -> Tensor:
        """(N, C, H, W) -> (N, classes)."""
        return self.classes(self.dropout(self.layers(x).mean(dim=(2, 3))))


class Inception(nn.Module):
    """Four branches side by side (Fig. 2b)."""

    def __init__(self, before: int, widths: list[int]) -> None:
        super().__init__()
        conv1, reduce3, conv3, reduce5, conv5, pooled = widths
        self.one = _Convolution(before, conv1, 1)  # a key of JSON: in files of weights
        conv, row = _Convolution, nn.Sequential
        self.three = row(conv(before, reduce3, 1), conv(reduce3, conv3, 3))
        self.five = row(conv(before, reduce5, 1), conv(reduce5, conv5, 5))
        self.pooled = row(nn.MaxPool2d(3, 1, padding=1), conv(before, pooled, 1))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.one(x), self.three(x), self.five(x), self.pooled(x)], 1)


class _Convolution(nn.Sequential):
    def __init__(self, before: int, after: int, kernel: int, stride: int = 1) -> None:
        conv = nn.Conv2d(before, after, kernel, stride, padding=kernel // 2)
        super().__init__(conv, nn.ReLU())


def _pool() -> nn.MaxPool2d:
    return nn.MaxPool2d(3, 2, ceil_mode=True)
