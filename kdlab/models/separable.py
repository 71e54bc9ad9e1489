"""Any network with depthwise-separable convolutions: Pipe-BD's compression student.

Each spatial convolution becomes a depthwise one and a 1×1 convolution over all channels
(DS-Conv; Howard et al. 2017, MobileNet, arXiv:1704.04861, section 3.1). All else keeps its
place and width, so each block can replace its teacher's.
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

_ABOVE = 2.0  # standard deviations from the ReLU's threshold up to the mean
_ENOUGH = 20_000  # pixels that factors are fitted to
_RIDGE, _TINY = 1e-3, 1e-12  # where pixels are few the factors of the kernels stay


@register("models/separable")
@dataclass(frozen=True, kw_only=True)
class Separable(ModelSpec):
    """A network with depthwise-separable convolutions.

    of: the network.
    plain: number of first convolutions that are not changed; the very first has three input
        channels, which saves nothing.
    only: numbers of the spatial convolutions to change, from 1 on; empty is all after
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
        convs = [
            (name, module)
            for name, module in net.named_modules()
            if isinstance(module, nn.Conv2d) and module.kernel_size != (1, 1)
        ]
        numbers = self.only or range(self.plain + 1, len(convs) + 1)
        if self.only and max(self.only) > len(convs):
            raise ModelError(
                f"only has convolution {max(self.only)}, and {self.of.component} has "
                f"{len(convs)} of more than one pixel."
            )
        chosen = [convs[n - 1] for n in numbers if convs[n - 1][1].groups == 1]
        if not chosen:
            raise ModelError(
                f"{self.of.component} has no convolution after the first {self.plain} that can "
                "be made depthwise-separable."
            )
        for name, conv in chosen:
            parent, _, last = name.rpartition(".")
            setattr(net.get_submodule(parent), last, SeparableConv(conv))
        return net


class SeparableConv(nn.Sequential):
    """A depthwise and a pointwise convolution, in place of one convolution."""

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
        """Return whether its input and output have the shapes of this convolution's."""
        depthwise, _, pointwise = self._parts()
        sizes = (depthwise.in_channels, pointwise.out_channels, depthwise.kernel_size)
        wanted = (conv.in_channels, conv.out_channels, conv.kernel_size)
        return sizes == wanted and depthwise.stride == conv.stride and conv.groups == 1

    @torch.no_grad()
    def inherit(self, conv: nn.Conv2d, views: Tensor, wanted: Tensor | None = None) -> None:
        """Set the weights so that it approximates a trained convolution.

        The kernels of each input channel become one kernel times a factor for each output (the
        first term of their singular value decomposition). The norm shifts the input of the ReLU
        between both so that it cuts little off. The factors are then fitted to the convolution's
        outputs by least squares, to make up for the ReLU and the other terms.

        Args:
            conv: of the same channels, kernel and stride.
            views: (N, C, H, W) inputs of this module in its network.
            wanted: outputs of the convolution in the teacher; None computes them from `views`.
        """
        depthwise, norm, pointwise = self._parts()
        kernels = conv.weight.flatten(2).transpose(0, 1)  # (in, out, pixels)
        left, values, right = torch.linalg.svd(kernels, full_matrices=False)
        sign = torch.where(right[:, :1].sum(2) < 0, -1.0, 1.0)  # (in, 1)
        depthwise.weight.copy_((right[:, 0] * sign).view_as(depthwise.weight))
        factors = left[:, :, 0] * values[:, :1] * sign  # (in, out)
        filtered = depthwise(views)
        std, mean = torch.std_mean(filtered, (0, 2, 3))
        norm.load_state_dict(
            norm.state_dict() | {"running_mean": mean, "running_var": std**2}
        )
        norm.weight.copy_(std)
        norm.bias.copy_(mean.maximum(_ABOVE * std))
        passed = (filtered + (norm.bias - mean).view(-1, 1, 1)).relu()
        wanted = conv(views) if wanted is None else wanted
        inputs, rest = _rows(passed), _rows(wanted)
        middle, target = inputs.mean(0), rest.mean(0)
        inputs, rest = inputs - middle, rest - target
        rest -= inputs @ factors
        square = inputs.T @ inputs
        square.diagonal().add_(_RIDGE * square.diagonal().mean().clamp_min(_TINY))
        factors = factors + torch.linalg.solve(square, inputs.T @ rest)
        pointwise.weight.copy_(factors.T[..., None, None])
        if pointwise.bias is not None:
            pointwise.bias.copy_(target - middle @ factors)


def _rows(maps: Tensor) -> Tensor:
    """(N, channels, H, W) -> (rows, channels): at most about 20,000 pixels, evenly spaced."""
    rows = maps.movedim(1, -1).flatten(0, 2)
    return rows[:: max(1, len(rows) // _ENOUGH)]


def like(conv: nn.Conv2d, **changes: Any) -> nn.Conv2d:
    """Create a convolution with the geometry of this one, random weights and no bias."""
    same = ("in_channels", "out_channels", "kernel_size", "stride", "padding", "dilation")
    return nn.Conv2d(
        **{name: getattr(conv, name) for name in same} | {"bias": False} | changes
    )
