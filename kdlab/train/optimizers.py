"""Optimisers by name: two of torch's, and all of timm's that a resume can go on with exactly."""

from collections.abc import Container, Iterator
from typing import TYPE_CHECKING

import torch
from torch import nn

from kdlab.config.folders import nearest
from kdlab.errors import Fault

if TYPE_CHECKING:
    from kdlab.train.recipe import Recipe

OWN = ("sgd", "adamw")
# What they keep is no tensor and no number, or they need gradients of gradients, or a GPU.
_NOT_OFFERED = (
    *("adafactorbv", "cadafactorbv", "adahessian", "kron"),
    *("bnb", "fused"),  # of bitsandbytes and apex, for GPUs with these libraries
)


def known() -> list[str]:
    """All names that `train.optimizer` may have."""
    from timm.optim import list_optimizers

    return [
        *OWN,
        *(
            f"timm/{name}"
            for name in list_optimizers()
            if not name.startswith(_NOT_OFFERED)
        ),
    ]


def faults(recipe: "Recipe") -> Iterator[Fault]:
    """What is wrong with the optimiser's name and options; imports timm only for timm's."""
    name = recipe.optimizer
    if name not in OWN:
        if not name.startswith("timm/"):
            yield Fault(
                "optimizer", f"is {name!r}; there is {', '.join(OWN)} and timm/NAME"
            )
            return
        names = known()
        if name not in names:
            yield Fault("optimizer", f"is {name!r}.{nearest(name, names)}")
            return
        try:
            _timms(recipe, nn.Linear(2, 2), None)
        except Exception as error:  # whatever timm's optimisers say of their options
            yield Fault("optimizer_options", f"{name} does not take them: {error}")
        if recipe.nesterov:
            yield Fault(
                "nesterov",
                f"has no effect with optimizer: {name}; timm/sgd has it, timm/momentum not",
            )
        return
    for key in ("optimizer_options", "layer_decay"):
        if getattr(recipe, key):
            yield Fault(key, f"has no effect with optimizer: {name}; timm/{name} takes it")


def make_optimizer(recipe: "Recipe", model: nn.Module) -> torch.optim.Optimizer:
    """No weight decay on biases and norms, nor where timm's models ask for none."""
    if recipe.optimizer.startswith("timm/"):
        return _timms(recipe, model, recipe.layer_decay)
    net = getattr(model, "net", None)  # it may spare pos_embed and such
    spared: Container[str] = getattr(net, "no_weight_decay", set)()
    decayed, plain = list[nn.Parameter](), list[nn.Parameter]()
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            keeps = parameter.ndim <= 1 or name.removeprefix("net.") in spared
            (plain if keeps else decayed).append(parameter)
    groups = [
        {"params": decayed, "weight_decay": recipe.weight_decay},
        {"params": plain, "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    if recipe.optimizer == "adamw":
        return torch.optim.AdamW(groups, lr=recipe.lr)
    return torch.optim.SGD(
        groups, lr=recipe.lr, momentum=recipe.momentum, nesterov=recipe.nesterov
    )


def _timms(
    recipe: "Recipe", model: nn.Module, layer_decay: float | None
) -> torch.optim.Optimizer:
    from timm.optim import create_optimizer_v2

    # It knows its layers; the normalisation learns nothing.
    network = getattr(model, "net", model)
    made: torch.optim.Optimizer = create_optimizer_v2(
        network,
        opt=recipe.optimizer.removeprefix("timm/"),
        lr=recipe.lr,
        weight_decay=recipe.weight_decay,
        momentum=recipe.momentum,
        layer_decay=layer_decay,
        **{
            k: tuple(v) if isinstance(v, list) else v
            for k, v in recipe.optimizer_options.items()
        },
    )
    return made
