"""First weights of a network from a trained teacher of its family.

A network that is the teacher but for some cheaper layers begins with the teacher's tensors in all
others; a module in the place of a convolution begins as its nearest approximation.
"""

from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from kdlab.models.model import evaluating

_TINY = 1e-12  # variance of a constant channel


@runtime_checkable
class Replacement(Protocol):
    """A module in the place of a convolution."""

    def stands_for(self, conv: nn.Conv2d) -> bool:
        """Return whether its input and output have the shapes of this convolution's."""

    def inherit(self, conv: nn.Conv2d, views: Tensor, wanted: Tensor | None = None) -> None:
        """Set the weights so that it approximates a convolution.

        Args:
            conv: of the same channels, kernel and stride.
            views: (N, C, H, W) inputs of this module in its network.
            wanted: outputs of the convolution in the teacher; None computes them from `views`.
        """


@dataclass(frozen=True, slots=True)
class SharedLayers:
    """Layers that a network shares with a teacher of its family.

    Attributes:
        wanted: number of tensors and stand-ins of the network.
        same: the teacher's tensors whose name and shape the network has too.
        replaced: stand-ins of the network by name, with the teacher's convolutions.
    """

    wanted: int
    same: dict[str, Tensor]
    replaced: dict[str, tuple[Replacement, nn.Conv2d]]


def find_shared_layers(net: nn.Module, teacher: nn.Module) -> SharedLayers:
    """Find the layers that a network shares with a teacher."""
    layers = dict(teacher.named_modules())
    replaced = {
        name: (module, conv)
        for name, module in net.named_modules()
        if isinstance(module, Replacement)
        and isinstance(conv := layers.get(name), nn.Conv2d)
        and module.stands_for(conv)
    }
    within, source = tuple(f"{name}." for name in replaced), teacher.state_dict()
    tensors = {k: v for k, v in net.state_dict().items() if not k.startswith(within)}
    same = {
        k: source[k]
        for k, v in tensors.items()
        if k in source and source[k].shape == v.shape
    }
    return SharedLayers(len(tensors) + len(replaced), same, replaced)


@torch.no_grad()
def inherit_layers(
    net: nn.Module, teacher: nn.Module, views: Tensor, common: SharedLayers | None = None
) -> None:
    """Copy tensors of the same name and shape, and fit stand-ins to the convolutions.

    Args:
        net: the student, with random weights.
        teacher: trained, on the same device.
        views: (N, C, H, W) inputs of the teacher, to fit stand-ins on.
        common: result of `find_shared_layers`; None computes it.
    """
    common = common or find_shared_layers(net, teacher)
    net.load_state_dict(common.same, strict=False)
    if common.replaced:
        _Fitting(common.replaced).run(net, teacher, views)


class _Fitting:
    """Fits stand-ins in the order of the student's forward pass.

    Each is fitted from the student's activations to the teacher's output at its place, so it makes
    up for the errors before it. The norm after it brings mean and variance to the teacher's. A
    module that is called several times is fitted in its first call.
    """

    def __init__(self, pairs: dict[str, tuple[Replacement, nn.Conv2d]]) -> None:
        self.pairs = pairs
        # Outputs of the teacher's convolutions, one a call
        self._outputs: dict[str, list[Tensor]] = {name: [] for name in pairs}
        # Output of the last stand-in, and the teacher's
        self._last: tuple[Tensor, Tensor] | None = None
        self._fitted = set[nn.Module]()  # stand-ins and norms

    def run(self, net: nn.Module, teacher: nn.Module, views: Tensor) -> None:
        with ExitStack() as hooks, evaluating(teacher), evaluating(net):
            for name, (_, conv) in self.pairs.items():
                module = net.get_submodule(name)
                for hook in (
                    conv.register_forward_hook(partial(self._keep, name)),
                    module.register_forward_pre_hook(partial(self._fit, name)),
                    module.register_forward_hook(partial(self._remember, name)),
                ):
                    hooks.callback(hook.remove)
            for norm in net.modules():
                if isinstance(norm, nn.BatchNorm2d) and norm.track_running_stats:
                    hook = norm.register_forward_pre_hook(self._correct_norm)
                    hooks.callback(hook.remove)
            teacher(views)
            net(views)

    def _keep(self, name: str, conv: nn.Module, _: object, output: Tensor) -> None:
        self._outputs[name].append(output.clone())  # a later module may overwrite it

    def _fit(self, name: str, module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        if module not in self._fitted and self._outputs[name]:
            self._fitted.add(module)
            stand_in, conv = self.pairs[name]
            stand_in.inherit(conv, inputs[0], self._outputs[name][0])

    def _remember(self, name: str, module: nn.Module, _: object, output: Tensor) -> None:
        outputs = self._outputs[name]  # empty where the teacher calls its layer less often
        self._last = (output, outputs.pop(0)) if outputs else None

    def _correct_norm(self, norm: nn.BatchNorm2d, inputs: tuple[Tensor, ...]) -> None:
        if self._last is None or inputs[0] is not self._last[0] or norm in self._fitted:
            return
        self._fitted.add(norm)
        _match_statistics(norm, *self._last)


def _match_statistics(norm: nn.BatchNorm2d, maps: Tensor, wanted: Tensor) -> None:
    """Scale the running statistics of a norm fitted to `wanted` so that they fit `maps`."""
    over = (0, 2, 3)
    (var, mean), (var_wanted, mean_wanted) = (
        torch.var_mean(tensor, over) for tensor in (maps, wanted)
    )
    scale = var / var_wanted.clamp_min(_TINY)
    state = norm.state_dict()
    state["running_mean"] = mean + (state["running_mean"] - mean_wanted) * scale.sqrt()
    state["running_var"] = state["running_var"] * scale
    norm.load_state_dict(state)
