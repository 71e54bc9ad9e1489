"""Any network with depthwise-separable convolutions: Pipe-BD's compression student.

Each spatial convolution becomes one of each channel by itself and a 1×1 convolution over
all channels (DS-Conv; Howard et al. 2017, MobileNet, arXiv:1704.04861, section 3.1). All
else keeps its place and width, so each block can stand for its teacher's.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, cast

import torch
from torch import Tensor, nn

from kdlab.config import Fault, Range, register
from kdlab.errors import ModelError
from kdlab.models.cifar_resnet import he_init
from kdlab.models.model import ModelSpec

_ABOVE = 2.0  # standard deviations that the mean lies above the ReLU's edge
_ENOUGH = 20_000  # pixels that factors are fitted to
_RIDGE, _TINY = 1e-3, 1e-12  # where pixels are few the factors of the kernels stay


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
            setattr(net.get_submodule(parent), last, SeparableConv(conv))
        return net


class SeparableConv(nn.Sequential):
    """Each channel by itself, then all together, in place of one convolution."""

    def __init__(self, conv: nn.Conv2d) -> None:
        channels = conv.in_channels
        super().__init__(
            like(conv, out_channels=channels, groups=channels),
            nn.BatchNorm2d(channels),
            nn.ReLU(),
            nn.Conv2d(channels, conv.out_channels, 1, bias=conv.bias is not None),
        )
        he_init(self)

    def _parts(self) -> tuple[nn.Conv2d, nn.BatchNorm2d, nn.Conv2d]:
        depthwise, norm, _, pointwise = self
        return cast(
            tuple[nn.Conv2d, nn.BatchNorm2d, nn.Conv2d], (depthwise, norm, pointwise)
        )

    def stands_for(self, conv: nn.Conv2d) -> bool:
        """Whether it gets and puts out what this one does."""
        depthwise, _, pointwise = self._parts()
        own = (depthwise.in_channels, pointwise.out_channels, depthwise.kernel_size)
        theirs = (conv.in_channels, conv.out_channels, conv.kernel_size)
        return own == theirs and depthwise.stride == conv.stride and conv.groups == 1

    @torch.no_grad()
    def inherit(self, conv: nn.Conv2d, views: Tensor, wanted: Tensor | None = None) -> None:
        """Begin as what is nearest to a trained convolution.

        Of each input channel the kernels to all outputs are one kernel times a factor for each
        (the first term of their singular value decomposition). Between both is a ReLU: the norm
        lifts what comes to it so that little is cut off. What that and the other terms change is
        made up for by the factors that fit the convolution's outputs best.

        Args:
            conv: of the same channels, kernel and stride.
            views: (N, C, H, W) that this one gets in its network.
            wanted: what the convolution puts out in its own network; as of the same views.
        """
        depthwise, norm, pointwise = self._parts()
        kernels = conv.weight.flatten(2).transpose(0, 1)  # (in, out, pixels)
        left, values, right = torch.linalg.svd(kernels, full_matrices=False)
        sign = torch.where(right[:, :1].sum(2) < 0, -1.0, 1.0)  # (in, 1)
        depthwise.weight.copy_((right[:, 0] * sign).view_as(depthwise.weight))
        factors = left[:, :, 0] * values[:, :1] * sign  # (in, out)
        made = depthwise(views)
        std, mean = torch.std_mean(made, (0, 2, 3))
        norm.load_state_dict(
            norm.state_dict() | {"running_mean": mean, "running_var": std**2}
        )
        norm.weight.copy_(std)
        norm.bias.copy_(mean.maximum(_ABOVE * std))
        passed = (made + (norm.bias - mean).view(-1, 1, 1)).relu()
        wanted = conv(views) if wanted is None else wanted
        given, rest = _rows(passed), _rows(wanted)
        middle, target = given.mean(0), rest.mean(0)
        given, rest = given - middle, rest - target
        rest -= given @ factors
        square = given.T @ given
        square.diagonal().add_(_RIDGE * square.diagonal().mean().clamp_min(_TINY))
        factors = factors + torch.linalg.solve(square, given.T @ rest)
        pointwise.weight.copy_(factors.T[..., None, None])
        if pointwise.bias is not None:
            pointwise.bias.copy_(target - middle @ factors)


def _rows(found: Tensor) -> Tensor:
    """(rows, channels) of (N, channels, H, W): enough of them, from everywhere."""
    rows = found.movedim(1, -1).flatten(0, 2)
    return rows[:: max(1, len(rows) // _ENOUGH)]


def like(conv: nn.Conv2d, **other: Any) -> nn.Conv2d:
    """A fresh convolution that moves over the image as this one does, without a bias."""
    same = ("in_channels", "out_channels", "kernel_size", "stride", "padding", "dilation")
    return nn.Conv2d(
        **{name: getattr(conv, name) for name in same} | {"bias": False} | other
    )
