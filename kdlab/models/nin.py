"""Network in Network for small images, without batch norm (Lin et al., arXiv:1312.4400).

The nine-layer network EC-DNN trains on CIFAR (section 5.1): three groups of a convolution
and two 1×1 layers, dropout between them, and the mean of each class's map at the end.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

from torch import Tensor, nn

from kdlab.config import Range, register
from kdlab.config.spec import SHARE
from kdlab.models.model import ModelSpec
from kdlab.models.pixel_mean import mean_layers

_FULL = 192  # channels of the published network
_NARROW = (160 / _FULL, 96 / _FULL)  # of the 1×1 layers in the first group


@register("models/nin")
@dataclass(frozen=True, kw_only=True)
class NetworkInNetwork(ModelSpec):
    """NiN: nine convolutions, dropout, no batch norm; for images from 12 pixels on.

    width: channels; 192 is the published network.
    dropout: after the first and the second group.
    pixel_mean: side of the images; their mean is then subtracted from each. null does not.
    """

    width: Annotated[int, Range(ge=4)] = _FULL
    dropout: Annotated[float, SHARE] = 0.5
    pixel_mean: Annotated[int, Range(ge=1)] | None = None

    def architecture(self, num_classes: int, in_chans: int) -> nn.Module:
        net = NiN(self.width, self.dropout, num_classes, in_chans)
        net.layers = nn.Sequential(*mean_layers(in_chans, self.pixel_mean), *net.layers)
        return net


class NiN(nn.Module):
    def __init__(self, width: int, dropout: float, classes: int, in_chans: int) -> None:
        super().__init__()
        first, second = (max(1, round(width * share)) for share in _NARROW)
        self.layers = nn.Sequential(
            *_group(in_chans, 5, (width, first, second)),
            nn.MaxPool2d(3, 2, ceil_mode=True),
            nn.Dropout(dropout),
            *_group(second, 5, (width, width, width)),
            nn.AvgPool2d(3, 2, ceil_mode=True),
            nn.Dropout(dropout),
            *_group(width, 3, (width, width)),
        )
        self.classes = nn.Conv2d(width, classes, 1)
        begin_plain(self)

    def forward(self, x: Tensor) -> Tensor:
        """(N, C, H, W) -> (N, classes)."""
        return self.classes(self.layers(x)).mean(dim=(2, 3))


def _group(before: int, size: int, widths: tuple[int, ...]) -> Iterator[nn.Module]:
    """Yield a convolution and the 1×1 layers after it."""
    for number, width in enumerate(widths):
        kernel = 1 if number else size
        yield nn.Conv2d(before, width, kernel, padding=kernel // 2)
        yield nn.ReLU()
        before = width


def begin_plain(net: nn.Module) -> None:
    """Initialise convolutions without batch norm: He et al. 2015, fan-in, zero biases."""
    for module in net.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
            assert module.bias is not None
            nn.init.zeros_(module.bias)
