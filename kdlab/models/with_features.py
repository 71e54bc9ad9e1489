"""Inner outputs of a network, taken while it computes what it computes anyway."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
Shape = tuple[int, ...]


def tap_of(model: Normalised, name: str, views: Tensor) -> str:
    """A tap for a name that people give: a module of the network, or `penultimate`.

    Raises:
        ModelError: there is no such module, or no linear layer at the end.
    """
    if name == "penultimate":
        return last_linear(model, views, "features ask for penultimate") + _INPUT
    modules = dict(model.net.named_modules())
    if name not in modules and f"inner.{name}" in modules:
        return f"inner.{name}"  # of a network that looks at views at a size of its own
    if name not in modules or not name:
        raise ModelError(
            f"{type(model.net).__name__} has no module {name!r}."
            f"{nearest(name, [m for m in modules if m])}"
        )
    return name


class Taps:
    """Keeps what the modules put out in the last forward pass, or were given.

    Args:
        net: the network.
        taps: modules by name; with `:input` what they are given.
    """

    def __init__(self, net: nn.Module, taps: Sequence[str]) -> None:
        self.taps = tuple(taps)
        self._taken: dict[str, Tensor] = {}
        self._versions: dict[str, tuple[Tensor, int]] = {}
        self._hooks: list[RemovableHandle] = []
        for tap in dict.fromkeys(self.taps):
            name, colon, _ = tap.partition(":")
            module = net.get_submodule(name)
            if colon:
                self._hooks.append(module.register_forward_pre_hook(self._before(tap)))
            else:
                self._hooks.append(module.register_forward_hook(self._behind(tap)))

    def _before(self, tap: str) -> Any:
        def hook(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            self._taken[tap] = inputs[0]

        return hook

    def _behind(self, tap: str) -> Any:
        def hook(module: nn.Module, inputs: object, output: Tensor) -> None:
            self._taken[tap] = output
            if isinstance(output, Tensor) and not output.is_inference():
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
    classes: of the whole network.
    """

    model: ModelSpec
    taps: tuple[str, ...]
    classes: int

    def architecture(self, num_classes: int, in_chans: int) -> nn.Module:
        whole = self.model.architecture(self.classes, in_chans)
        return Tapped(whole, self.taps, self.classes)


class Tapped(nn.Module):
    """(N, C, H, W) -> (N, classes + D). Its weights have the whole network's names."""

    def __init__(self, whole: nn.Module, taps: Sequence[str], classes: int) -> None:
        super().__init__()
        self.whole, self.classes = whole, classes
        self._taps = Taps(whole, taps)

    def forward(self, views: Tensor) -> Tensor:
        logits = self.whole(views)
        return torch.cat([logits, *(t.flatten(1) for t in self._taps.taken())], dim=1)

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> Any:
        """Load the whole network's state."""
        return self.whole.load_state_dict(state_dict, strict, assign)
