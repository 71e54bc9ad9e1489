"""A network up to its last hidden state: what its last layer is put to elsewhere.

Of many classes the hidden state is the smaller answer, and nothing is lost: the layer behind it is
linear, and whoever has it makes the same logits (arXiv:2603.01875).
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from kdlab.config import register
from kdlab.errors import ModelError
from kdlab.models.model import ModelSpec, Normalised, evaluating


@register("models/headless")
@dataclass(frozen=True, kw_only=True)
class Headless(ModelSpec):
    """What a network's last layer is given, one row per image.

    model: the whole network; `weights` and `sha256` are of its file.
    head: module that makes the logits (`last_linear`).
    classes: of the whole network.
    """

    model: ModelSpec
    head: str
    classes: int

    def architecture(self, num_classes: int, in_chans: int) -> nn.Module:
        whole = self.model.architecture(self.classes, in_chans)
        return without_head(whole, self.head)


class _Unasked(nn.Linear):
    """A last layer that is there for its weights' names."""

    def forward(self, input: Tensor) -> Tensor:
        return input


def without_head(whole: nn.Module, head: str) -> nn.Module:
    """In place: the network gives what its last layer was given, under the same names."""
    linear = whole.get_submodule(head)
    assert isinstance(linear, nn.Linear)
    made = _Unasked(linear.in_features, linear.out_features, linear.bias is not None)
    made.weight, made.bias = linear.weight, linear.bias
    parent, _, name = head.rpartition(".")
    setattr(whole.get_submodule(parent), name, made)
    return whole


@torch.no_grad()
def last_linear(
    model: Normalised, views: Tensor, asked: str = "soft_labels.sends is hidden"
) -> str:
    """Name of the linear layer whose output is the network's.

    Args:
        model: with its normalisation; the name is that within `model.net`.
        views: (N, C, H, W) uint8; one or two are enough.
        asked: who wants to know, for the message.

    Raises:
        ModelError: its logits come from something else.
    """
    gave = dict[int, tuple[str, Tensor]]()  # by id; tensors are kept so that ids stay

    def seen(name: str) -> object:
        def hook(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
            if inputs[0].ndim == 2:
                gave[id(output)] = name, output

        return hook

    hooks = [
        part.register_forward_hook(seen(name))  # type: ignore[arg-type]  # a hook by its shape
        for name, part in model.net.named_modules()
        if isinstance(part, nn.Linear)
    ]
    try:
        with evaluating(model):
            logits = model(views)
    finally:
        for hook in hooks:
            hook.remove()
    if id(logits) not in gave:
        raise ModelError(
            f"{asked}, and the logits of {type(model.net).__name__} do not come straight from "
            "a linear layer: there is no head to put to its hidden state. Logits can be had "
            "(soft_labels.sends=logits), and features of other modules."
        )
    return gave[id(logits)][0]
