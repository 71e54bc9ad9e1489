"""The base of all distillation losses: two weights and one soft loss.

EDL-Dist, Algorithm 2, line 5: α φ(y, F(θ, input)) + β ψ(soft labels, F'(θ, input)).
φ is cross entropy and belongs to the step; a component of this room is ψ.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Annotated, ClassVar

from torch import Tensor

from kdlab.config.spec import NOT_NEGATIVE, Spec
from kdlab.errors import ModelError, ShapeError


@dataclass(frozen=True, kw_only=True)
class LossSpec(Spec, ABC):
    """What every distillation loss can be told.

    hard_weight: α of EDL-Dist, weight of the cross entropy with the true labels.
    soft_weight: β of EDL-Dist, weight of the soft loss. They need not sum to 1:
        published ImageNet recipes do not.
    warm_up_epochs: over which the soft loss grows to its weight, 1/20 of it in the first of 20.
    """

    hard_weight: Annotated[float, NOT_NEGATIVE] = 0.5
    soft_weight: Annotated[float, NOT_NEGATIVE] = 0.5
    warm_up_epochs: Annotated[int, NOT_NEGATIVE] = 0

    # The gradient grows as T to this power for large T; the T² factor makes it 0 for
    # every loss that compares softened probabilities.
    gradient_power: ClassVar[int] = 0
    needs_labels: ClassVar[bool] = False  # of every sample
    # Whether rows of a batch are compared: then its value depends on how many there are.
    compares_rows: ClassVar[bool] = False
    rests_at_equality: ClassVar[bool] = True  # no gradient where student and teacher agree

    @property
    def of_labels(self) -> bool:
        """Whether it, or a part of it, needs the label of every sample."""
        return self.needs_labels

    def soft_weight_at(self, epoch: float) -> float:
        """β when so many epochs are over; whole ones count, as mdistiller counts from 1."""
        if not self.warm_up_epochs:
            return self.soft_weight
        return self.soft_weight * min((int(epoch) + 1) / self.warm_up_epochs, 1.0)

    def against_draws(self) -> str:
        """Why labels that are right on average only do not serve it; empty where they do.

        They serve what is linear in the teacher's probabilities.
        """
        return f"{self.component} is not linear in the teacher's probabilities"

    @abstractmethod
    def soft(self, student: Tensor, teacher: Tensor, labels: Tensor) -> Tensor:
        """ψ: the mean over the batch; zero gradient where the student agrees.

        Args:
            student: (N, C) logits.
            teacher: (N, C) logits of the same samples, row by row; gets no gradient.
            labels: (N,) true classes, for losses that treat the target class apart.

        Raises:
            ShapeError: the shapes of student and teacher differ.
        """


def standardised(logits: Tensor) -> Tensor:
    """Each row without its mean, over its standard deviation (of C - 1, as torch has it).

    So a student learns how its teacher ranks classes, not how large its logits are.

    Args:
        logits: (N, C), C >= 3. A row of equal logits gives zeros.

    Raises:
        ModelError: of two classes.

    Source:
        Logit Standardization in Knowledge Distillation, CVPR 2024 (arXiv:2403.01427), algorithm 1.
    """
    if logits.shape[1] < 3:
        raise ModelError(
            "loss.standardise is true, and there are two classes: both logits of each image become "
            "±0.71, whatever they were, so nothing would be learned. Take standardise=false."
        )
    centred = logits - logits.mean(dim=1, keepdim=True)
    variance = centred.square().sum(dim=1, keepdim=True) / (logits.shape[1] - 1)
    # The root of a variance of 0 has no gradient.
    return centred / variance.clamp_min(1e-14).sqrt()


def same_shape(student: Tensor, teacher: Tensor) -> None:
    """Each loss asks this first.

    Raises:
        ShapeError: the shapes differ.
        ValueError: there is no row, of which no mean can be taken.
    """
    if student.shape != teacher.shape:
        raise ShapeError("student", student, "teacher", teacher)
    if not len(student):
        raise ValueError("a loss is the mean over a batch, and this batch is empty")
