"""How a model is trained: everything about optimisation, nothing about teachers."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Literal, Protocol, TypedDict

import torch
from torch import nn

from kdlab.config.spec import NOT_NEGATIVE, POSITIVE, SHARE, Range, Spec
from kdlab.errors import Fault

_POSITIVE = Range(ge=1)


@dataclass(frozen=True, kw_only=True)
class Recipe(Spec):
    """Optimiser, schedule, precision and cadence of one training.

    lr: for this batch size; never scaled silently.
    warmup_epochs: linear from 0, on top of any schedule.
    drop_lr_at, drop_lr_factor: epochs and factor of the step schedule.
    clip_grad_norm: largest 2-norm of all gradients together; null is off.
    precision: fp32, or autocast to bf16 or fp16 (fp16 with a gradient scaler, GPU only).
    channels_last: layout of the weights on a GPU; it has no effect on the CPU.
    threads: of PyTorch on the CPU; null leaves PyTorch's own choice.
    evaluate_every: epochs between looks at the validation images; the last always looks.
    checkpoint_every_s: seconds; checkpoint_every_steps adds a cadence in steps.
    log_every_steps: null logs five times a second.
    """

    epochs: Annotated[int, Range(gt=0, le=10**9)] = 10
    batch: Annotated[int, Range(ge=2)] = 64
    optimizer: Literal["sgd", "adamw"] = "sgd"
    lr: Annotated[float, POSITIVE] = 0.05
    momentum: Annotated[float, SHARE] = 0.9
    nesterov: bool = False
    weight_decay: Annotated[float, NOT_NEGATIVE] = 5e-4
    schedule: Literal["constant", "cosine", "step"] = "cosine"
    warmup_epochs: Annotated[float, NOT_NEGATIVE] = 0.0
    drop_lr_at: tuple[Annotated[int, _POSITIVE], ...] = ()
    drop_lr_factor: Annotated[float, Range(gt=0, lt=1)] = 0.1
    label_smoothing: Annotated[float, SHARE] = 0.0
    clip_grad_norm: Annotated[float, POSITIVE] | None = None
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    channels_last: bool = False
    compile: bool = False
    device: Literal["auto", "cpu", "cuda"] = "auto"
    threads: Annotated[int, Range(gt=0, le=4096)] | None = None
    evaluate_every: Annotated[int, _POSITIVE] = 1
    evaluate_batch: Annotated[int, _POSITIVE] = 256
    checkpoint_every_s: Annotated[float, POSITIVE] = 30.0
    checkpoint_every_steps: Annotated[int, _POSITIVE] | None = None
    log_every_steps: Annotated[int, _POSITIVE] | None = None

    def cross_faults(self) -> Iterator[Fault]:
        if self.schedule == "step" and not self.drop_lr_at:
            yield Fault("drop_lr_at", "is empty; the step schedule needs epochs to drop at")
        if self.drop_lr_at and self.schedule != "step":
            yield Fault("drop_lr_at", f"has no effect with schedule: {self.schedule}")
        if self.warmup_epochs >= self.epochs:
            yield Fault(
                "warmup_epochs",
                f"is {self.warmup_epochs:g}, must be shorter than epochs ({self.epochs})",
            )
        if self.precision == "fp16" and self.chosen_device() == "cpu":
            yield Fault("precision", "is fp16, which needs a GPU; on the CPU use bf16")
        if self.device == "cuda" and not torch.cuda.is_available():
            yield Fault("device", "is cuda, and PyTorch sees no GPU on this machine")

    def chosen_device(self) -> str:
        if self.device != "auto":
            return self.device
        return "cuda" if torch.cuda.is_available() else "cpu"


class OptimizerState(TypedDict):
    """What `state_dict` of torch's optimisers has: by number of the parameter, and groups."""

    state: dict[int, dict[str, object]]
    param_groups: list[dict[str, object]]


class Stepper(Protocol):
    """What a loop asks of an optimiser; torch's are such."""

    param_groups: list[dict[str, object]]

    def zero_grad(self, set_to_none: bool = True) -> None: ...

    def step(self) -> object: ...

    def state_dict(self) -> Mapping[str, object]: ...

    def load_state_dict(self, state_dict: dict[str, object]) -> None: ...


def lr_at(recipe: Recipe, epoch: float, steps_per_epoch: int) -> float:
    """Learning rate after so many epochs, a pure function so that a resume is exact."""
    lr = recipe.lr
    if recipe.schedule == "cosine":
        start = recipe.warmup_epochs
        progress = max(0.0, epoch - start) / max(1e-9, recipe.epochs - start)
        lr *= 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))
    elif recipe.schedule == "step":
        lr *= recipe.drop_lr_factor ** sum(epoch >= at for at in recipe.drop_lr_at)
    if epoch < recipe.warmup_epochs:
        # Step 0 trains too: it gets the first of equal rises, not zero.
        lr *= (epoch * steps_per_epoch + 1) / math.ceil(
            recipe.warmup_epochs * steps_per_epoch
        )
    return lr


def make_optimizer(recipe: Recipe, model: nn.Module) -> torch.optim.Optimizer:
    """No weight decay on biases and batch-norm scales (1-D parameters)."""
    decayed = [p for p in model.parameters() if p.requires_grad and p.ndim > 1]
    plain = [p for p in model.parameters() if p.requires_grad and p.ndim <= 1]
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
