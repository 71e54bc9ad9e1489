"""Inner outputs of a network, taken while it computes what it computes anyway."""

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
    """A tap for a name that people give: a module, `penultimate`, or `patches`.

    `patches` are the last patch tokens of a transformer of timm as a map, those of any module are
    `NAME:map`; class token and registers are left out.

    Raises:
        ModelError: there is no such module, or no linear layer at the end.
    """
    if name == "penultimate" and not model.num_classes:
        return ""  # it has no last layer: what it puts out itself
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
    """Tokens that are no patches, as timm's transformers say it: class token and registers."""
    found = (getattr(part, "num_prefix_tokens", None) for part in net.modules())
    return next((count for count in found if isinstance(count, int)), None)


def as_map(tokens: Tensor, prefix: int) -> Tensor:
    """(N, prefix + side², D) -> (N, D, side, side)."""
    patches = tokens[:, prefix:]
    side = isqrt(patches.shape[1])
    if tokens.ndim != 3 or side * side != patches.shape[1]:
        raise ModelError(
            f"A map is made of the tokens of a square of patches, and this module puts out "
            f"{'×'.join(map(str, tokens.shape[1:]))} numbers with {prefix} other tokens."
        )
    return patches.transpose(1, 2).unflatten(2, (side, side))


class Taps:
    """Keeps what the modules put out in the last forward pass, or were given.

    Args:
        net: the network.
        taps: modules by name, the whole network by none; with `:input` what they are given, with
            `:map` the patch tokens that they put out, as a map.
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
        def hook(module: nn.Module, inputs: object, output: Tensor) -> None:
            prefix = self._prefix[tap]
            self._taken[tap] = output
            if not isinstance(output, Tensor):
                return  # `shapes_of` refuses it
            if prefix is not None:
                self._taken[tap] = as_map(output, prefix)
            if not output.is_inference():
                self._versions[tap] = output, output._version

        return hook

    def changed(self) -> list[str]:
        """Taps whose outputs were written over by what came behind them."""
        return [tap for tap, (out, then) in self._versions.items() if out._version != then]

    def taken(self) -> list[Tensor]:
        """(N, ...) of each tap, in their order; kept no longer."""
        missing = [tap for tap in self.taps if tap not in self._taken]
        if missing:
            raise ModelError(f"The network never asks its module {missing[0]}.")
        found = [self._taken[tap] for tap in self.taps]
        self._taken.clear()
        self._versions.clear()
        return found

    def close(self) -> None:
        """The network is left as it was."""
        for hook in self._hooks:
            hook.remove()


@torch.no_grad()
def shapes_of(model: Normalised, taps: Sequence[str], views: Tensor) -> list[Shape]:
    """Shape of one image's output at each tap.

    Raises:
        ModelError: a module that does not put out one tensor of numbers for each image.
    """
    taken = Taps(model.net, taps)
    try:
        with evaluating(model):
            model(views)
        if over := taken.changed():
            raise ModelError(
                f"{over[0]} of {type(model.net).__name__} puts out what the next module writes "
                "over (in place); take the module behind it."
            )
        found = taken.taken()
    finally:
        taken.close()
    for tap, value in zip(taps, found, strict=True):
        if not isinstance(value, Tensor) or len(value) != len(views):
            raise ModelError(
                f"{tap} of {type(model.net).__name__} puts out no tensor with a row for each "
                "image; take another module."
            )
    return [tuple(value.shape[1:]) for value in found]


@register("models/with_features")
@dataclass(frozen=True, kw_only=True)
class WithFeatures(ModelSpec):
    """A network's logits, and behind them its inner outputs, flat, in one row per image.

    model: the whole network; `weights` and `sha256` are of its file.
    taps: modules by name whose outputs are taken; with `:input` what they are given.
    classes: of the whole network; 0 where it has no last layer.
    """

    model: ModelSpec
    taps: tuple[str, ...]
    classes: int

    def architecture(self, num_classes: int, in_chans: int) -> nn.Module:
        whole = self.model.architecture(self.classes, in_chans)
        return Tapped(whole, self.taps, self.classes)


class Tapped(nn.Module):
    """(N, C, H, W) -> (N, classes + D); with 0 classes features alone.

    Its weights have the whole network's names.
    """

    def __init__(self, whole: nn.Module, taps: Sequence[str], classes: int) -> None:
        super().__init__()
        self.whole, self.classes = whole, classes
        self._taps = Taps(whole, taps)

    def forward(self, views: Tensor) -> Tensor:
        logits = self.whole(views)
        said = [logits] if self.classes else []
        return torch.cat([*said, *(t.flatten(1) for t in self._taps.taken())], dim=1)

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> Any:
        """Load the whole network's state."""
        return self.whole.load_state_dict(state_dict, strict, assign)
