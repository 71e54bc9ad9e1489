"""Wide ResNets: wrn-16-2, wrn-40-2 and their kin.

Zagoruyko and Komodakis 2016 (arXiv:1605.07146): pre-activation blocks, depth 6n + 4,
stages of 16, 32, 64 channels times `widen`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

from torch import Tensor, nn
from torch.nn.functional import relu

from kdlab.config import Fault, Range, register
from kdlab.models.cifar_resnet import he_init, stack_stages
from kdlab.models.model import ModelSpec


@register("models/wide_resnet")
@dataclass(frozen=True, kw_only=True)
class WideResNetSpec(ModelSpec):
    """Wide ResNet for small images: wrn-16-2 is depth 16, widen 2."""

    depth: Annotated[int, Range(ge=10, le=1000)] = 16
    widen: Annotated[int, Range(ge=1)] = 2

    def cross_faults(self) -> Iterator[Fault]:
        if (self.depth - 4) % 6:
            near = 6 * round((self.depth - 4) / 6) + 4
            yield Fault("depth", f"is {self.depth}, must be 6n + 4, for example {near}")

    def architecture(self, num_classes: int, in_chans: int) -> nn.Module:
        return WideResNet(self.depth, self.widen, num_classes, in_chans)


class WideResNet(nn.Module):
    def __init__(self, depth: int, widen: int, num_classes: int, in_chans: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(in_chans, 16, 3, padding=1, bias=False)
        stages = [channels * widen for channels in (16, 32, 64)]
        self.blocks = stack_stages(PreActivationBlock, 16, stages, (depth - 4) // 6)
        self.bn = nn.BatchNorm2d(stages[-1])
        self.head = nn.Linear(stages[-1], num_classes)
        he_init(self)

    def forward(self, x: Tensor) -> Tensor:
        """(N, C, H, W) normalised -> (N, classes)."""
        return self.head(relu(self.bn(self.blocks(self.stem(x)))).mean(dim=(2, 3)))


class PreActivationBlock(nn.Module):
    def __init__(self, before: int, channels: int, stride: int) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(before)
        self.conv1 = nn.Conv2d(before, channels, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.shortcut: nn.Conv2d | None = None
        if before != channels:
            self.shortcut = nn.Conv2d(before, channels, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        active = relu(self.bn1(x))
        y: Tensor = self.conv2(relu(self.bn2(self.conv1(active))))
        # Where the shape changes, the shortcut starts after the activation.
        return y + (x if self.shortcut is None else self.shortcut(active))
