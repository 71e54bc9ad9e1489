"""DIST: distillation by correlation, Huang et al. 2022 (arXiv:2205.10536)."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from torch import Tensor
from torch.nn.functional import cosine_similarity, softmax

from kdlab.config import register
from kdlab.config.spec import NOT_NEGATIVE, POSITIVE
from kdlab.losses.soft_loss import LossSpec, same_shape


@register("losses/dist")
@dataclass(frozen=True, kw_only=True)
class Dist(LossSpec):
    """DIST: matches correlations within rows and within columns, not exact values.

    between_weight: the paper's β, of the relations between classes (rows).
    within_weight: the paper's γ, of the relations within a class (columns).
    """

    hard_weight: Annotated[float, NOT_NEGATIVE] = 1.0
    soft_weight: Annotated[float, NOT_NEGATIVE] = 1.0
    temperature: Annotated[float, POSITIVE] = 4.0
    between_weight: Annotated[float, NOT_NEGATIVE] = 1.0
    within_weight: Annotated[float, NOT_NEGATIVE] = 1.0

    # Correlations do not shrink with T, so the published T² makes the gradient grow.
    gradient_power: ClassVar[int] = 2

    def soft(self, student: Tensor, teacher: Tensor, labels: Tensor) -> Tensor:
        between, within = dist_parts(student, teacher, self.temperature)
        return self.between_weight * between + self.within_weight * within


def dist_parts(
    student: Tensor, teacher: Tensor, temperature: float
) -> tuple[Tensor, Tensor]:
    """Compute DIST's losses (between classes, within classes), each times T².

    Args:
        student: (N, C) logits.
        teacher: (N, C) logits of the same samples; gets no gradient.
        temperature: T > 0, no unit.

    Returns:
        Two scalars without unit, 0 to 2 T²: one minus the Pearson correlation of the
        rows (one per sample) and of the columns (one per class), averaged. The column
        part compares samples of the batch with each other, so unlike the other losses
        it depends on which samples share a batch.

    Raises:
        ShapeError: the shapes differ.

    Source:
        arXiv:2205.10536, equations 6 to 9 and the appendix on T.
    """
    same_shape(student, teacher)
    p = softmax(student / temperature, dim=1)
    q = softmax(teacher.detach() / temperature, dim=1)
    scale = temperature**2
    return _unlike(p, q) * scale, _unlike(p.T, q.T) * scale


def _unlike(a: Tensor, b: Tensor) -> Tensor:
    """Compute one minus the Pearson correlation of each row pair, averaged."""
    centred_a = a - a.mean(dim=1, keepdim=True)
    centred_b = b - b.mean(dim=1, keepdim=True)
    return 1 - cosine_similarity(centred_a, centred_b, dim=1, eps=1e-8).mean()
