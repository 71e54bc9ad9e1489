"""Several soft losses at once, each with its weight."""

from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor

from kdlab.config import register
from kdlab.errors import Fault
from kdlab.losses.soft_loss import LossSpec


@register("losses/sum")
@dataclass(frozen=True, kw_only=True)
class Sum(LossSpec):
    """The sum of soft losses, each times its `soft_weight`; `hard_weight` is the sum's alone.

    parts: such as [{type: losses/hinton, soft_weight: 0.9}, {type: losses/dist, soft_weight: 2}].
    """

    soft_weight: float = 1.0
    parts: tuple[LossSpec, ...] = ()

    def cross_faults(self) -> Iterator[Fault]:
        if any(part.warm_up_epochs for part in self.parts):
            yield Fault(
                "parts", "one has warm_up_epochs, which only the sum itself can have"
            )
        if not self.parts:
            yield Fault("parts", "is empty; name the losses that are added up")
        if self.soft_weight < 0:
            yield Fault("soft_weight", f"is {self.soft_weight:g}, must be >= 0")

    @property
    def of_labels(self) -> bool:
        return any(part.of_labels for part in self.parts)

    def against_draws(self) -> str:
        return next((why for part in self.parts if (why := part.against_draws())), "")

    def soft(self, student: Tensor, teacher: Tensor, labels: Tensor) -> Tensor:
        total = student.new_zeros(())
        for part in self.parts:
            total = total + part.soft_weight * part.soft(student, teacher, labels)
        return total
