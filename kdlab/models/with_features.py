"""Inner outputs of a network, recorded during its forward pass."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isqrt
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from kdlab.config import register
from kdlab.config.folders import nearest
from kdlab.errors import ModelError
from kdlab.models.headless import last_linear
from kdlab.models.model import ModelSpec, Normalised, evaluating

_INPUT = ":input"  # of the module, instead of its output
_MAP = ":map"  # of its patch tokens
Shape = tuple[int, ...]


def tap_of(model: Normalised, name: str, views: Tensor) -> str:
    """Return the tap for a name in a config: a module, `penultimate`, or `patches`.

    `patches` are the last patch tokens of a transformer of timm as a map, those of any module are
    `NAME:map`; class token and registers are left out.

    Raises:
        ModelError: there is no such module, or no linear layer at the end.
    """
    if name == "penultimate" and not model.num_classes:
        return ""  # it has no last layer: its output
    if name == "penultimate":
        return last_linear(model, views, "features ask for penultimate") + _INPUT
    modules = dict(model.net.named_modules())
    name = f"norm{_MAP}" if name == "patches" else name
    name, is_map = name.removesuffix(_MAP), name.endswith(_MAP)
    if is_map and _prefix_of(model.net) is None:
        raise ModelError(
            f"{type(model.net).__name__} has no patch tokens: its features are maps as they "
            "are, by the names of its modules."
        )
    if name not in modules and f"inner.{name}" in modules:
        name = f"inner.{name}"  # of a network that looks at views at a size of its own
    if name not in modules or not name:
        raise ModelError(
            f"{type(model.net).__name__} has no module {name!r}."
            f"{nearest(name, [m for m in modules if m])}"
        )
    return name + _MAP * is_map


def _prefix_of(net: nn.Module) -> int | None:
    """Number of tokens that are no patches (class token, registers) in a transformer of timm."""
    counts = (getattr(part, "num_prefix_tokens", None) for part in net.modules())
    return next((count for count in counts if isinstance(count, int)), None)


def as_map(tokens: Tensor, prefix: int) -> Tensor:
    """Arrange patch tokens as a map: (N, prefix + side², D) -> (N, D, side, side)."""
    patches = tokens[:, prefix:]
    side = isqrt(patches.shape[1])
    if tokens.ndim != 3 or side * side != patches.shape[1]:
        raise ModelError(
            f"A map needs the tokens of a square of patches; this module's output is "
            f"{'×'.join(map(str, tokens.shape[1:]))} with {prefix} other tokens."
        )
    return patches.transpose(1, 2).unflatten(2, (side, side))


class Taps:
    """Records outputs or inputs of modules in each forward pass.

    Args:
        net: the network.
        taps: names of modules, "" for the network; `NAME:input` records the module's input,
            `NAME:map` its patch tokens as a map.
    """

    def __init__(self, net: nn.Module, taps: Sequence[str]) -> None:
        self.taps = tuple(taps)
        self._prefix: dict[str, int | None] = {}  # of those that become maps
        self._taken: dict[str, Tensor] = {}
        self._versions: dict[str, tuple[Tensor, int]] = {}
        self._hooks: list[RemovableHandle] = []
        for tap in dict.fromkeys(self.taps):
            name, _, kind = tap.partition(":")
            module = net.get_submodule(name)
            self._prefix[tap] = (_prefix_of(net) or 0) if kind == "map" else None
            if kind == "input":
                self._hooks.append(module.register_forward_pre_hook(self._before(tap)))
            else:
                self._hooks.append(module.register_forward_hook(self._behind(tap)))

    def _before(self, tap: str) -> Any:
        def hook(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            self._taken[tap] = inputs[0]

        return hook

    def _behind(self, tap: str) -> Any:
        def hook(module: nn.Module, inputs: object, output: Any) -> None:
            prefix = self._prefix[tap]
            self._taken[tap] = output  # `shapes_of` refuses what is no tensor
            if isinstance(output, Tensor) and prefix is not None:
                self._taken[tap] = as_map(output, prefix)
            if isinstance(output, Tensor) and not output.is_inference():
                self._versions[tap] = output, output._version

        return hook

    def overwritten(self) -> list[str]:
        """Return the taps whose outputs a later module overwrote in place."""
        return [tap for tap, (out, then) in self._versions.items() if out._version != then]

    def take(self) -> list[Tensor]:
        """Return and forget the last (N, ...) tensor of each tap, in their order."""
        missing = [tap for tap in self.taps if tap not in self._taken]
        if missing:
            raise ModelError(f"The network never calls its module {missing[0]}.")
        outputs = [self._taken[tap] for tap in self.taps]
        self._taken.clear()
        self._versions.clear()
        return outputs

    def close(self) -> None:
        """Remove the hooks."""
        for hook in self._hooks:
            hook.remove()


@torch.no_grad()
def shapes_of(model: Normalised, taps: Sequence[str], views: Tensor) -> list[Shape]:
    """Return the shape of one image's output at each tap.

    Raises:
        ModelError: a module's output is not a tensor with a row for each image.
    """
    hooks = Taps(model.net, taps)
    try:
        with evaluating(model):
            model(views)
        if over := hooks.overwritten():
            raise ModelError(
                f"The module after {over[0]} of {type(model.net).__name__} overwrites its output "
                "in place; take that module instead."
            )
        outputs = hooks.take()
    finally:
        hooks.close()
    for tap, value in zip(taps, outputs, strict=True):
        if not isinstance(value, Tensor) or len(value) != len(views):
            raise ModelError(
                f"The output of {tap} of {type(model.net).__name__} is no tensor with a row for "
                "each image; take another module."
            )
    return [tuple(value.shape[1:]) for value in outputs]


@register("models/with_features")
@dataclass(frozen=True, kw_only=True)
class WithFeatures(ModelSpec):
    """A network whose answer is a row per image: its logits, then its flattened inner outputs.

    model: the network; `weights` and `sha256` are of its file.
    taps: names of the modules whose outputs are taken, or with `:input` their inputs.
    classes: of the network; 0 where it has no last layer.
    """

    model: ModelSpec
    taps: tuple[str, ...]
    classes: int

    def architecture(self, num_classes: int, in_chans: int) -> nn.Module:
        network = self.model.architecture(self.classes, in_chans)
        return Tapped(network, self.taps, self.classes)


class Tapped(nn.Module):
    """(N, C, H, W) -> (N, classes + D); with 0 classes features alone.

    It loads weights by the names that the network alone has.
    """

    def __init__(self, network: nn.Module, taps: Sequence[str], classes: int) -> None:
        super().__init__()
        self.network, self.classes = network, classes
        self._taps = Taps(network, taps)

    def forward(self, views: Tensor) -> Tensor:
        logits = self.network(views)
        parts = [logits] if self.classes else []
        return torch.cat([*parts, *(t.flatten(1) for t in self._taps.take())], dim=1)

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> Any:
        """Load the state of the network inside."""
        return self.network.load_state_dict(state_dict, strict, assign)
