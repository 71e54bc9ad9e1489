"""What a network takes over from one of its family that was trained.

A network that was made cheaper in some of its layers is the other one's in all the rest. Those
begin with the other one's tensors, and what stands in for a convolution as what is nearest to it.
"""

from dataclasses import dataclass
from functools import partial
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from kdlab.models.model import evaluating

_TINY = 1e-12  # variance of a channel that is silent


@runtime_checkable
class Replacement(Protocol):
    """A module in the place of a convolution."""

    def stands_for(self, conv: nn.Conv2d) -> bool:
        """Whether it gets and puts out what this one does."""

    def inherit(self, conv: nn.Conv2d, views: Tensor, wanted: Tensor | None = None) -> None:
        """Begin as what is nearest to it.

        Args:
            conv: of the same channels, kernel and stride.
            views: (N, C, H, W) that this one gets in its network.
            wanted: what the convolution puts out in its own network; as of the same views.
        """


@dataclass(frozen=True, slots=True)
class SharedLayers:
    """What a network has in common with one of its family.

    Attributes:
        wanted: tensors and stand-ins of the network.
        same: tensors of the other one that have the name and shape of one of its own.
        replaced: its stand-ins by name, and the convolutions in whose place they are.
    """

    wanted: int
    same: dict[str, Tensor]
    replaced: dict[str, tuple[Replacement, nn.Conv2d]]


def in_common(net: nn.Module, other: nn.Module) -> SharedLayers:
    """Layers of a network that one of its family has too."""
    layers = dict(other.named_modules())
    replaced = {
        name: (made, conv)
        for name, made in net.named_modules()
        if isinstance(made, Replacement)
        and isinstance(conv := layers.get(name), nn.Conv2d)
        and made.stands_for(conv)
    }
    within, theirs = tuple(f"{name}." for name in replaced), other.state_dict()
    own = {k: v for k, v in net.state_dict().items() if not k.startswith(within)}
    same = {
        k: theirs[k] for k, v in own.items() if k in theirs and theirs[k].shape == v.shape
    }
    return SharedLayers(len(own) + len(replaced), same, replaced)


@torch.no_grad()
def inherit_layers(net: nn.Module, other: nn.Module, views: Tensor) -> None:
    """Copy tensors of the same name and shape; stand-ins begin as what is nearest.

    Args:
        net: with weights that mean nothing yet.
        other: trained, on the same device.
        views: that the other one takes; stand-ins are fitted to what it makes of them.
    """
    common = in_common(net, other)
    net.load_state_dict(common.same, strict=False)
    if common.replaced:
        _Fitting(common.replaced).run(net, other, views)


class _Fitting:
    """Fits stand-ins in the order in which a forward pass of the student comes to them.

    Each gets what the student makes of the images so far, and is fitted to the teacher's output
    of its place: so it makes up for what those before it changed. The norm behind it brings
    mean and variance to the teacher's.
    """

    def __init__(self, pairs: dict[str, tuple[Replacement, nn.Conv2d]]) -> None:
        self.pairs = pairs
        self._outputs: dict[str, Tensor] = {}  # of the teacher's convolutions
        # Output of the last stand-in, and as it should be
        self._last: tuple[Tensor, Tensor] | None = None

    def run(self, net: nn.Module, other: nn.Module, views: Tensor) -> None:
        handles: list[RemovableHandle] = []
        for name, (_, conv) in self.pairs.items():
            made = net.get_submodule(name)
            handles += [
                conv.register_forward_hook(partial(self._keep, name)),
                made.register_forward_pre_hook(partial(self._fit, name)),
                made.register_forward_hook(partial(self._remember, name)),
            ]
        for norm in net.modules():
            if isinstance(norm, nn.BatchNorm2d) and norm.track_running_stats:
                handles.append(norm.register_forward_pre_hook(self._correct))
        with evaluating(other), evaluating(net):
            other(views)
            net(views)
        for handle in handles:
            handle.remove()

    def _keep(self, name: str, conv: nn.Module, given: object, output: Tensor) -> None:
        self._outputs[name] = output.clone()  # what comes behind may write over it

    def _fit(self, name: str, made: nn.Module, given: tuple[Tensor, ...]) -> None:
        stand_in, conv = self.pairs[name]
        stand_in.inherit(conv, given[0], self._outputs[name])

    def _remember(self, name: str, made: nn.Module, given: object, output: Tensor) -> None:
        self._last = output, self._outputs.pop(name)

    def _correct(self, norm: nn.BatchNorm2d, given: tuple[Tensor, ...]) -> None:
        if self._last is not None and given[0] is self._last[0]:
            _correct(norm, *self._last)


def _correct(norm: nn.BatchNorm2d, found: Tensor, wanted: Tensor) -> None:
    """Have a teacher's norm do to `found` what it does to `wanted`, in mean and variance."""
    over = (0, 2, 3)
    (var, mean), (var_wanted, mean_wanted) = (
        torch.var_mean(maps, over) for maps in (found, wanted)
    )
    scale = var / var_wanted.clamp_min(_TINY)
    state = norm.state_dict()
    state["running_mean"] = mean + (state["running_mean"] - mean_wanted) * scale.sqrt()
    state["running_var"] = state["running_var"] * scale
    norm.load_state_dict(state)
