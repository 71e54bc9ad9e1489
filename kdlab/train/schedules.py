"""Learning rates as pure functions of the position, so that a resume is exact."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Annotated, Any

import torch

from kdlab.config.spec import NOT_NEGATIVE, POSITIVE, Range, Spec
from kdlab.errors import Fault

_OWN = ("constant", "cosine", "step", "plateau")
_TIMMS = ("timm/cosine", "timm/tanh", "timm/poly", "timm/step", "timm/multistep")
_NEEDED = {"timm/step": "decay_epochs", "timm/multistep": "decay_milestones"}
# kdlab sets these itself, and counts in steps.
_RESERVED = ("num_epochs", "warmup_epochs", "warmup_prefix", "step_on_epochs",
          "updates_per_epoch", "plateau_mode", "patience_epochs")  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class ScheduleSettings(Spec):
    """Epochs and learning rate of a training.

    lr: for this batch size; never scaled silently.
    warmup_epochs: linear from 0, on top of any schedule; with timm's it takes the schedule's place,
        as timm has it, from `schedule_options.warmup_lr`.
    schedule: constant, cosine, step, plateau, or timm/cosine, timm/tanh, timm/poly, timm/step,
        timm/multistep with `schedule_options` of timm's, such as {cycle_limit: 3} for restarts.
    drop_lr_at, drop_lr_factor: epochs of the step schedule, and the factor of step and plateau.
    patience: validations without a new best before the plateau schedule drops.
    """

    epochs: Annotated[int, Range(gt=0, le=10**9)] = 10
    lr: Annotated[float, POSITIVE] = 0.05
    schedule: str = "cosine"
    schedule_options: Mapping[str, Any] = field(default_factory=dict)
    warmup_epochs: Annotated[float, NOT_NEGATIVE] = 0.0
    drop_lr_at: tuple[Annotated[int, Range(ge=1)], ...] = ()
    drop_lr_factor: Annotated[float, Range(gt=0, lt=1)] = 0.1
    patience: Annotated[int, Range(ge=0)] = 5

    def cross_faults(self) -> Iterator[Fault]:
        """Check the fields; timm is imported only for its own."""
        name = self.schedule
        if name not in (*_OWN, *_TIMMS):
            yield Fault(
                "schedule", f"is {name!r}, must be one of {', '.join((*_OWN, *_TIMMS))}"
            )
            return
        if name == "step" and not self.drop_lr_at:
            yield Fault("drop_lr_at", "is empty; the step schedule needs epochs to drop at")
        if self.drop_lr_at and name != "step":
            yield Fault("drop_lr_at", f"has no effect with schedule: {name}")
        if self.schedule_options and name not in _TIMMS:
            yield Fault("schedule_options", f"has no effect with schedule: {name}")
        if self.warmup_epochs >= self.epochs:
            yield Fault(
                "warmup_epochs",
                f"is {self.warmup_epochs:g}, must be shorter than epochs ({self.epochs})",
            )
        elif name in _TIMMS:
            reserved = [key for key in self.schedule_options if key in _RESERVED]
            if reserved:
                yield Fault(f"schedule_options.{reserved[0]}", "is set by kdlab")
                return
            needed = _NEEDED.get(name)
            if needed is not None and needed not in self.schedule_options:
                yield Fault(
                    "schedule_options", f"lacks {needed}, in epochs; {name} needs it"
                )
                return
            try:
                lr_at(self, 0.0, 1)
            except (TypeError, ValueError, ArithmeticError, AssertionError) as error:
                yield Fault("schedule_options", f"{name} does not take them: {error}")


def lr_at(
    recipe: ScheduleSettings, epoch: float, steps_per_epoch: int, drops: int = 0
) -> float:
    """Return the learning rate after `epoch` epochs.

    Args:
        recipe: of the training.
        epoch: epochs done, with a fraction within one.
        steps_per_epoch: steps of each.
        drops: of the plateau schedule so far (`plateau_drops`).
    """
    lr = recipe.lr
    if recipe.schedule == "cosine":
        start = recipe.warmup_epochs
        progress = max(0.0, epoch - start) / max(1e-9, recipe.epochs - start)
        lr *= 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))
    elif recipe.schedule == "step":
        lr *= recipe.drop_lr_factor ** sum(epoch >= at for at in recipe.drop_lr_at)
    elif recipe.schedule == "plateau":
        lr *= recipe.drop_lr_factor**drops
    elif recipe.schedule in _TIMMS:
        # The rest of an epoch is a step, too.
        done = math.floor(epoch * steps_per_epoch + 1e-6)
        last = recipe.epochs * steps_per_epoch - 1
        return _timms(recipe, steps_per_epoch)(min(done, last))
    if epoch < recipe.warmup_epochs:
        # Step 0 trains too: it gets the first of equal rises, not zero.
        lr *= (epoch * steps_per_epoch + 1) / math.ceil(
            recipe.warmup_epochs * steps_per_epoch
        )
    return lr


def plateau_drops(validations: Sequence[float], patience: int) -> int:
    """Count the drops after more than `patience` validations in a row without a new best.

    As in ReduceLROnPlateau, the count restarts after a drop.
    """
    best, waited, drops = -math.inf, 0, 0
    for accuracy in validations:
        if accuracy > best:
            best, waited = accuracy, 0
        else:
            waited += 1
        if waited > patience:
            drops, waited = drops + 1, 0
    return drops


class _TimmSchedule:
    """timm's scheduler on a dummy optimizer, for any step in any order."""

    def __init__(
        self, name: str, lr: float, epochs: int, warm_up: float, steps: int, options: Any
    ) -> None:
        from timm.scheduler import create_scheduler_v2

        self._optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=lr)
        self._scheduler, _ = create_scheduler_v2(
            self._optimizer,
            sched=name.removeprefix("timm/"),
            num_epochs=_first_cycle(epochs, options),
            warmup_epochs=warm_up,
            step_on_epochs=False,
            updates_per_epoch=steps,
            **options,
        )

    def __call__(self, step: int) -> float:
        self._scheduler.step_update(step)
        return float(self._optimizer.param_groups[0]["lr"])


def _first_cycle(epochs: int, options: Mapping[str, Any]) -> float:
    """Return the epochs until the first restart, so that all cycles add up to the training."""
    cycles = int(options.get("cycle_limit", 1))
    longer = float(options.get("cycle_mul", 1.0))
    return epochs / sum(longer**k for k in range(max(1, cycles)))


def _timms(recipe: ScheduleSettings, steps: int) -> _TimmSchedule:
    options = json.dumps(recipe.schedule_options, sort_keys=True)
    name, warm_up = recipe.schedule, recipe.warmup_epochs
    return _make_schedule(name, recipe.lr, recipe.epochs, warm_up, steps, options)


@lru_cache(maxsize=64)
def _make_schedule(
    name: str, lr: float, epochs: int, warm_up: float, steps: int, options: str
) -> _TimmSchedule:
    return _TimmSchedule(name, lr, epochs, warm_up, steps, json.loads(options))
