"""Optimizers by name: two of torch's, and all of timm's that resume exactly."""

from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

import torch
from torch import nn

from kdlab.config.folders import nearest
from kdlab.config.spec import NOT_NEGATIVE, SHARE, Range
from kdlab.errors import Fault
from kdlab.lazy import lazy
from kdlab.train.schedules import ScheduleSettings

timms = lazy("timm.optim")  # 3 s
OWN = ("sgd", "adamw")
# Their state is neither tensors nor numbers, or they need second derivatives, or a GPU.
_NOT_OFFERED = (
    *("adafactorbv", "cadafactorbv", "adahessian", "kron"),
    *("bnb", "fused"),  # of bitsandbytes and apex, for GPUs with these libraries
)


def available_optimizers() -> list[str]:
    """List all values of `train.optimizer`."""
    return [
        *OWN,
        *(
            f"timm/{name}"
            for name in timms.list_optimizers()
            if not name.startswith(_NOT_OFFERED)
        ),
    ]


@dataclass(frozen=True, kw_only=True)
class OptimizerSettings(ScheduleSettings):
    """Optimizer of a training.

    optimizer: sgd, adamw, or one of timm's: timm/lamb, timm/lion, timm/muon and so on, with
        its `optimizer_options`, such as {betas: [0.9, 0.95]}.
    layer_decay: of timm's optimizers: factor between the learning rates of a stage of a timm
        model and of the one after it.
    """

    optimizer: str = "sgd"
    optimizer_options: Mapping[str, Any] = field(default_factory=dict)
    momentum: Annotated[float, SHARE] = 0.9
    nesterov: bool = False
    weight_decay: Annotated[float, NOT_NEGATIVE] = 5e-4
    layer_decay: Annotated[float, Range(gt=0, le=1)] | None = None

    def cross_faults(self) -> Iterator[Fault]:
        """Check the fields; timm is imported only for its own."""
        yield from super().cross_faults()
        name = self.optimizer
        if name not in OWN:
            if not name.startswith("timm/"):
                yield Fault(
                    "optimizer", f"is {name!r}; there is {', '.join(OWN)} and timm/NAME"
                )
                return
            names = available_optimizers()
            if name not in names:
                yield Fault("optimizer", f"is {name!r}.{nearest(name, names)}")
                return
            try:
                _timms(self, nn.Linear(2, 2), None)
            except Exception as error:  # any error of timm's optimizers about their options
                yield Fault("optimizer_options", f"{name} does not take them: {error}")
            if self.nesterov:
                yield Fault(
                    "nesterov",
                    f"has no effect with optimizer: {name}; timm/sgd has it, timm/momentum not",
                )
            return
        for key in ("optimizer_options", "layer_decay"):
            if getattr(self, key):
                yield Fault(
                    key, f"has no effect with optimizer: {name}; timm/{name} takes it"
                )


def parameter_groups(module: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Group parameters by weight decay: none on biases, norms, and what a timm model exempts."""
    net = getattr(module, "net", None)  # a timm model exempts pos_embed and such
    exempt: Container[str] = getattr(net, "no_weight_decay", set)()
    decayed, plain = list[nn.Parameter](), list[nn.Parameter]()
    for name, parameter in module.named_parameters():
        if parameter.requires_grad:
            decays = parameter.ndim > 1 and name.removeprefix("net.") not in exempt
            (decayed if decays else plain).append(parameter)
    groups = ((decayed, weight_decay), (plain, 0.0))
    return [{"params": group, "weight_decay": decay} for group, decay in groups if group]


def make_optimizer(recipe: OptimizerSettings, model: nn.Module) -> torch.optim.Optimizer:
    """Make the recipe's optimizer; timm's group the parameters themselves."""
    if recipe.optimizer.startswith("timm/"):
        return _timms(recipe, model, recipe.layer_decay)
    groups = parameter_groups(model, recipe.weight_decay)
    if recipe.optimizer == "adamw":
        return torch.optim.AdamW(groups, lr=recipe.lr)
    return torch.optim.SGD(
        groups, lr=recipe.lr, momentum=recipe.momentum, nesterov=recipe.nesterov
    )


def _timms(
    recipe: OptimizerSettings, model: nn.Module, layer_decay: float | None
) -> torch.optim.Optimizer:
    # The network has timm's layer groups; the normalisation has no parameters.
    network = getattr(model, "net", model)
    optimizer: torch.optim.Optimizer = timms.create_optimizer_v2(
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
    return optimizer
