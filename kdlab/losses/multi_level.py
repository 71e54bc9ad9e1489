"""Multi-level logit distillation, Jin et al. 2023 (CVPR): instances, batch and classes at once."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, ClassVar

from torch import Tensor, softmax

from kdlab.config import register
from kdlab.config.spec import NOT_NEGATIVE, POSITIVE
from kdlab.errors import Fault
from kdlab.losses.hinton import hinton_kd
from kdlab.losses.soft_loss import LossSpec, same_shape, standardised


@register("losses/multi_level")
@dataclass(frozen=True, kw_only=True)
class MultiLevel(LossSpec):
    """KL at several temperatures, and similarities of samples and of classes in a batch.

    temperatures: each adds its three terms; the paper's are 2 to 6.
    batch_weight: of the similarities between samples, which grow with the batch.
    class_weight: of those between classes, which grow with its square.
    standardise: z-scores of the logits first, for the KL alone (arXiv:2403.01427).
    """

    compares_rows: ClassVar[bool] = True

    hard_weight: Annotated[float, NOT_NEGATIVE] = 1.0
    soft_weight: Annotated[float, NOT_NEGATIVE] = 1.0
    temperatures: tuple[Annotated[float, POSITIVE], ...] = (2.0, 3.0, 4.0, 5.0, 6.0)
    batch_weight: Annotated[float, NOT_NEGATIVE] = 1.0
    class_weight: Annotated[float, NOT_NEGATIVE] = 1.0
    standardise: bool = False

    def cross_faults(self) -> Iterator[Fault]:
        if not self.temperatures:
            yield Fault("temperatures", "is empty; the paper's are 2, 3, 4, 5, 6")

    def soft(self, student: Tensor, teacher: Tensor, labels: Tensor) -> Tensor:
        logits = student, teacher
        if self.standardise:
            same_shape(student, teacher)
            logits = standardised(student), standardised(teacher)
        total = student.new_zeros(())
        for temperature in self.temperatures:
            between, within = resemblances(student, teacher, temperature)
            total = total + hinton_kd(*logits, temperature)
            total = total + self.batch_weight * between + self.class_weight * within
        return total


def resemblances(
    student: Tensor, teacher: Tensor, temperature: float
) -> tuple[Tensor, Tensor]:
    """Compute squared differences of Gram matrices of probabilities: (samples, classes).

    Args:
        student: (N, C) logits.
        teacher: (N, C) logits of the same samples; gets no gradient.
        temperature: T > 0, no unit.

    Returns:
        Two scalars: of the (N, N) matrix over N, and of the (C, C) matrix over C.

    Raises:
        ShapeError: the shapes differ.

    Source:
        Multi-level Logit Distillation, CVPR 2023, equations 5 to 8.
    """
    same_shape(student, teacher)
    p = softmax(student / temperature, dim=1)
    q = softmax(teacher.detach() / temperature, dim=1)
    between = (p @ p.T - q @ q.T).square().sum() / len(p)
    within = (p.T @ p - q.T @ q).square().sum() / p.shape[1]
    return between, within
