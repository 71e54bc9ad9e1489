"""Recipe of a training: everything about optimisation, nothing about teachers."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Literal, Protocol, TypedDict

import torch

from kdlab.config.spec import POSITIVE, SHARE, Range
from kdlab.errors import Fault
from kdlab.train.optimizers import OptimizerSettings

_POSITIVE = Range(ge=1)


@dataclass(frozen=True, kw_only=True)
class Recipe(OptimizerSettings):
    """Optimizer, schedule, precision and cadence of one training.

    hard_loss: on the true labels: cross entropy, or binary cross entropy of each class.
    accumulate: parts of a batch that are computed one after the other; their gradients add up.
    ema: decay of a running mean of the weights, which is then validated, saved and exported.
    clip_grad_norm: largest 2-norm of all gradients together; null is off.
    quantise_after: share of the epochs after which the student learns with weights and inputs
        rounded as int8 will round them (quantisation-aware training); null never.
    precision: fp32, or autocast to bf16 or fp16 (fp16 with a gradient scaler, GPU only).
    channels_last: layout of the weights on a GPU; it has no effect on the CPU.
    threads: of PyTorch on the CPU; null leaves PyTorch's default.
    evaluate_every: epochs between validations; the last epoch is always validated.
    checkpoint_every_s: seconds; checkpoint_every_steps adds a cadence in steps.
    log_every_steps: null logs five times a second.
    """

    batch: Annotated[int, Range(ge=2)] = 64
    hard_loss: Literal["cross_entropy", "bce"] = "cross_entropy"
    label_smoothing: Annotated[float, SHARE] = 0.0
    clip_grad_norm: Annotated[float, POSITIVE] | None = None
    accumulate: Annotated[int, _POSITIVE] = 1
    ema: Annotated[float, Range(gt=0, lt=1)] | None = None
    quantise_after: Annotated[float, SHARE] | None = None
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
        yield from super().cross_faults()
        if self.precision == "fp16" and self.chosen_device() == "cpu":
            yield Fault("precision", "is fp16, which needs a GPU; on the CPU use bf16")
        if self.device == "cuda" and not torch.cuda.is_available():
            yield Fault("device", "is cuda, and PyTorch sees no GPU on this machine")
        if self.quantise_after is not None:
            for name in ("compile", "precision"):
                if getattr(self, name) not in (False, "fp32"):
                    yield Fault(
                        "quantise_after",
                        f"is set, and {name} is {getattr(self, name)}; layers are rounded in "
                        "fp32, as PyTorch runs them",
                    )
        if self.accumulate > self.batch:
            yield Fault(
                "accumulate", f"is {self.accumulate}, more than batch ({self.batch})"
            )

    def rounds_at(self, epoch: float) -> bool:
        """True where steps at this epoch use eight bits (`quantise_after`)."""
        after = self.quantise_after
        return after is not None and epoch > after * self.epochs

    def chosen_device(self) -> str:
        if self.device != "auto":
            return self.device
        return "cuda" if torch.cuda.is_available() else "cpu"


class OptimizerState(TypedDict):
    """`state_dict` of an optimizer of torch: state by parameter number, and groups."""

    state: dict[int, dict[str, object]]
    param_groups: list[dict[str, object]]


class Stepper(Protocol):
    """Interface of an optimizer; torch's have it."""

    param_groups: list[dict[str, object]]

    def zero_grad(self, set_to_none: bool = True) -> None: ...

    def step(self) -> object: ...

    def state_dict(self) -> Mapping[str, object]: ...

    def load_state_dict(self, state_dict: dict[str, object]) -> None: ...
