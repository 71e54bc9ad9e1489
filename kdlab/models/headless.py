"""A network up to its last hidden state; the last layer is applied elsewhere.

With many classes the hidden state is smaller than the logits, and nothing is lost: the last layer
is linear, and makes the same logits anywhere (arXiv:2603.01875).
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
    """A network whose answer is the input of its last layer, one row per image.

    model: the network with its last layer; `weights` and `sha256` are of its file.
    head: module that computes the logits (`last_linear`).
    classes: of the network.
    """

    model: ModelSpec
    head: str
    classes: int

    def architecture(self, num_classes: int, in_chans: int) -> nn.Module:
        network = self.model.architecture(self.classes, in_chans)
        return without_head(network, self.head)


class _UnusedHead(nn.Linear):
    """An identity with a last layer's parameters, so that files of weights fit."""

    def forward(self, input: Tensor) -> Tensor:
        return input


def without_head(network: nn.Module, head: str) -> nn.Module:
    """Replace the last layer in place by an identity with the same names of tensors."""
    linear = network.get_submodule(head)
    assert isinstance(linear, nn.Linear)
    stand_in = _UnusedHead(linear.in_features, linear.out_features, linear.bias is not None)
    stand_in.weight, stand_in.bias = linear.weight, linear.bias
    parent, _, name = head.rpartition(".")
    setattr(network.get_submodule(parent), name, stand_in)
    return network


@torch.no_grad()
def last_linear(
    model: Normalised, views: Tensor, reason: str = "soft_labels.sends is hidden"
) -> str:
    """Return the name, within `model.net`, of the linear layer that computes the logits.

    Args:
        model: with its normalisation.
        views: (N, C, H, W) uint8; one or two are enough.
        reason: the setting that needs it, for the error.

    Raises:
        ModelError: the logits are not the output of a linear layer.
    """
    outputs = dict[int, tuple[str, Tensor]]()  # by id; tensors are kept so that ids stay

    def record(name: str) -> object:
        def hook(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
            if inputs[0].ndim == 2:
                outputs[id(output)] = name, output

        return hook

    hooks = [
        part.register_forward_hook(record(name))  # type: ignore[arg-type]  # a hook by its shape
        for name, part in model.net.named_modules()
        if isinstance(part, nn.Linear)
    ]
    try:
        with evaluating(model):
            logits = model(views)
    finally:
        for hook in hooks:
            hook.remove()
    if id(logits) not in outputs:
        raise ModelError(
            f"{reason}, and the logits of {type(model.net).__name__} do not come straight from "
            "a linear layer: no head can be applied to its hidden state. Use logits "
            "(soft_labels.sends=logits), or features of other modules."
        )
    return outputs[id(logits)][0]
