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
    """Options of every distillation loss.

    hard_weight: α of EDL-Dist, weight of the cross entropy with the true labels.
    soft_weight: β of EDL-Dist, weight of the soft loss. They need not sum to 1:
        published ImageNet recipes do not.
    warm_up_epochs: epochs in which the soft loss grows to its weight; of 20, 1/20 in the first.
    """

    hard_weight: Annotated[float, NOT_NEGATIVE] = 0.5
    soft_weight: Annotated[float, NOT_NEGATIVE] = 0.5
    warm_up_epochs: Annotated[int, NOT_NEGATIVE] = 0

    # The gradient grows as T to this power for large T; the T² factor makes it 0 for
    # every loss that compares softened probabilities.
    gradient_power: ClassVar[int] = 0
    needs_labels: ClassVar[bool] = False  # of every sample
    # It compares rows of a batch, so its value depends on the size of the batch.
    compares_rows: ClassVar[bool] = False
    rests_at_equality: ClassVar[bool] = True  # no gradient where student and teacher agree

    @property
    def of_labels(self) -> bool:
        """True where it, or a part of it, needs the label of every sample."""
        return self.needs_labels

    def soft_weight_at(self, epoch: float) -> float:
        """Return β after `epoch` epochs; it rises by whole epochs from 1, as in mdistiller."""
        if not self.warm_up_epochs:
            return self.soft_weight
        return self.soft_weight * min((int(epoch) + 1) / self.warm_up_epochs, 1.0)

    def against_draws(self) -> str:
        """Return the reason against labels that are right on average only, or an empty string.

        Losses that are linear in the teacher's probabilities can use them.
        """
        return f"{self.component} is not linear in the teacher's probabilities"

    @abstractmethod
    def soft(self, student: Tensor, teacher: Tensor, labels: Tensor) -> Tensor:
        """Compute ψ, the mean over the batch; its gradient is zero where the student agrees.

        Args:
            student: (N, C) logits.
            teacher: (N, C) logits of the same samples, row by row; gets no gradient.
            labels: (N,) true classes, for losses that treat the target class apart.

        Raises:
            ShapeError: the shapes of student and teacher differ.
        """


def standardised(logits: Tensor) -> Tensor:
    """Standardise each row of logits, with the standard deviation of C - 1 as in torch.

    So a student learns the teacher's ranking of classes, not the size of its logits.

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
            "±0.71, so nothing would be learned. Set loss.standardise=false."
        )
    centred = logits - logits.mean(dim=1, keepdim=True)
    variance = centred.square().sum(dim=1, keepdim=True) / (logits.shape[1] - 1)
    # The root of a variance of 0 has no gradient.
    return centred / variance.clamp_min(1e-14).sqrt()


def same_shape(student: Tensor, teacher: Tensor) -> None:
    """Require equal shapes and at least one row.

    Raises:
        ShapeError: the shapes differ.
        ValueError: the batch is empty, and has no mean.
    """
    if student.shape != teacher.shape:
        raise ShapeError("student", student, "teacher", teacher)
    if not len(student):
        raise ValueError("a loss is the mean over a batch, and this batch is empty")
