"""The ResNets of the distillation tables: resnet20 ... resnet110, resnet8x4, resnet32x4.

He et al. 2015 (arXiv:1512.03385), section 4.2: a 3×3 stem and three stages of
(depth - 2) / 6 basic blocks. `width` sets the channels of stem and stages; the "x4"
networks of the distillation literature are 32, 64, 128, 256.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated

from torch import Tensor, nn
from torch.nn.functional import relu

from kdlab.config import Fault, Range, register
from kdlab.models.model import ModelSpec


@register("models/cifar_resnet")
@dataclass(frozen=True, kw_only=True)
class CifarResNet(ModelSpec):
    """ResNet for small images: depth 6n + 2, width = channels of stem and three stages."""

    depth: Annotated[int, Range(ge=8, le=1202)] = 20
    width: tuple[int, int, int, int] = (16, 16, 32, 64)

    def cross_faults(self) -> Iterator[Fault]:
        if (self.depth - 2) % 6:
            near = 6 * round((self.depth - 2) / 6) + 2
            yield Fault("depth", f"is {self.depth}, must be 6n + 2, for example {near}")
        if min(self.width) < 1:
            yield Fault("width", f"is {list(self.width)}, all must be >= 1")

    def architecture(self, num_classes: int, in_chans: int) -> nn.Module:
        return ResNet(self.depth, self.width, num_classes, in_chans)


class ResNet(nn.Module):
    def __init__(
        self, depth: int, width: tuple[int, ...], num_classes: int, in_chans: int
    ) -> None:
        super().__init__()
        stem, *stages = width
        self.stem = nn.Sequential(
            nn.Conv2d(in_chans, stem, 3, padding=1, bias=False), nn.BatchNorm2d(stem)
        )
        self.blocks = stack_stages(BasicBlock, stem, stages, (depth - 2) // 6)
        self.head = nn.Linear(stages[-1], num_classes)
        he_init(self)

    def forward(self, x: Tensor) -> Tensor:
        """(N, C, H, W) normalised -> (N, classes)."""
        return self.head(self.blocks(relu(self.stem(x))).mean(dim=(2, 3)))


class BasicBlock(nn.Module):
    def __init__(self, before: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, channels, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or before != channels:
            self.shortcut = nn.Sequential(
                nn.Conv2d(before, channels, 1, stride, bias=False), nn.BatchNorm2d(channels)
            )

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn2(self.conv2(relu(self.bn1(self.conv1(x)))))
        return relu(y + self.shortcut(x))


def stack_stages(
    block: Callable[[int, int, int], nn.Module],
    before: int,
    stages: Sequence[int],
    each: int,
) -> nn.Sequential:
    """Stack stages of `each` blocks (channels before, after, stride); all but the first halve."""
    blocks = []
    for i, channels in enumerate(stages):
        for j in range(each):
            blocks.append(block(before, channels, 2 if i > 0 and j == 0 else 1))
            before = channels
    return nn.Sequential(*blocks)


def he_init(net: nn.Module) -> None:
    """Initialise every convolution as He et al. 2015 (arXiv:1502.01852), fan-out."""
    for module in net.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
