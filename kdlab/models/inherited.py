"""What a network takes over from one of its family that was trained.

A network that was made cheaper in some of its layers is the other one's in all the rest. Those
begin with the other one's tensors, and what stands in for a convolution as what is nearest to it.
"""

from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn

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
def inherit_layers(
    net: nn.Module, other: nn.Module, views: Tensor, common: SharedLayers | None = None
) -> None:
    """Copy tensors of the same name and shape; stand-ins begin as what is nearest.

    Args:
        net: with weights that mean nothing yet.
        other: trained, on the same device.
        views: that the other one takes; stand-ins are fitted to what it makes of them.
        common: of `in_common`, where it was asked before.
    """
    common = common or in_common(net, other)
    net.load_state_dict(common.same, strict=False)
    if common.replaced:
        _Fitting(common.replaced).run(net, other, views)


class _Fitting:
    """Fits stand-ins in the order in which a forward pass of the student comes to them.

    Each gets what the student makes of the images so far, and is fitted to the teacher's output
    of its place: so it makes up for what those before it changed. The norm behind it brings
    mean and variance to the teacher's. One that is called several times is fitted in the first.
    """

    def __init__(self, pairs: dict[str, tuple[Replacement, nn.Conv2d]]) -> None:
        self.pairs = pairs
        # Outputs of the teacher's convolutions, one a call
        self._outputs: dict[str, list[Tensor]] = {name: [] for name in pairs}
        # Output of the last stand-in, and as it should be
        self._last: tuple[Tensor, Tensor] | None = None
        self._done = set[nn.Module]()  # stand-ins and norms

    def run(self, net: nn.Module, other: nn.Module, views: Tensor) -> None:
        with ExitStack() as hooks, evaluating(other), evaluating(net):
            for name, (_, conv) in self.pairs.items():
                made = net.get_submodule(name)
                for hook in (
                    conv.register_forward_hook(partial(self._keep, name)),
                    made.register_forward_pre_hook(partial(self._fit, name)),
                    made.register_forward_hook(partial(self._remember, name)),
                ):
                    hooks.callback(hook.remove)
            for norm in net.modules():
                if isinstance(norm, nn.BatchNorm2d) and norm.track_running_stats:
                    hooks.callback(norm.register_forward_pre_hook(self._correct).remove)
            other(views)
            net(views)

    def _keep(self, name: str, conv: nn.Module, given: object, output: Tensor) -> None:
        self._outputs[name].append(output.clone())  # what comes behind may write over it

    def _fit(self, name: str, made: nn.Module, given: tuple[Tensor, ...]) -> None:
        if made not in self._done and self._outputs[name]:
            self._done.add(made)
            stand_in, conv = self.pairs[name]
            stand_in.inherit(conv, given[0], self._outputs[name][0])

    def _remember(self, name: str, made: nn.Module, given: object, output: Tensor) -> None:
        outputs = self._outputs[name]  # none are left where the teacher calls it less often
        self._last = (output, outputs.pop(0)) if outputs else None

    def _correct(self, norm: nn.BatchNorm2d, given: tuple[Tensor, ...]) -> None:
        if self._last is None or given[0] is not self._last[0] or norm in self._done:
            return
        self._done.add(norm)
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
