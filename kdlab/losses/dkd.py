"""Decoupled knowledge distillation, Zhao et al. 2022 (arXiv:2203.08679)."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from torch import Tensor, stack
from torch.nn.functional import kl_div, log_softmax, one_hot

from kdlab.config import register
from kdlab.config.spec import NOT_NEGATIVE, POSITIVE
from kdlab.losses.soft_loss import LossSpec, same_shape, standardised


@register("losses/dkd")
@dataclass(frozen=True, kw_only=True)
class DecoupledKd(LossSpec):
    """DKD: separate weights of the target class and of the others; CIFAR-100 defaults.

    target_weight: the paper's α, of the target-class part (TCKD).
    other_weight: the paper's β, of the part among the other classes (NCKD).
    standardise: z-scores of the logits first (arXiv:2403.01427).
    """

    needs_labels: ClassVar[bool] = True

    hard_weight: Annotated[float, NOT_NEGATIVE] = 1.0
    soft_weight: Annotated[float, NOT_NEGATIVE] = 1.0
    temperature: Annotated[float, POSITIVE] = 4.0
    target_weight: Annotated[float, NOT_NEGATIVE] = 1.0
    other_weight: Annotated[float, NOT_NEGATIVE] = 8.0
    standardise: bool = False

    def soft(self, student: Tensor, teacher: Tensor, labels: Tensor) -> Tensor:
        if self.standardise:
            same_shape(student, teacher)
            student, teacher = standardised(student), standardised(teacher)
        target, rest = dkd_parts(student, teacher, labels, self.temperature)
        return self.target_weight * target + self.other_weight * rest


def dkd_parts(
    student: Tensor, teacher: Tensor, labels: Tensor, temperature: float
) -> tuple[Tensor, Tensor]:
    """Compute (TCKD, NCKD), each times T².

    Args:
        student: (N, C) logits, C >= 3: with two classes nothing is left beside the target.
        teacher: (N, C) logits of the same samples; gets no gradient.
        labels: (N,) true classes.
        temperature: T > 0, no unit.

    Returns:
        Two scalars in nats per sample: KL of (target, all others together), and KL
        among the others, renormalised. TCKD + (1 - q_target) NCKD is the full KL
        (equation 7), which tests/losses/test_values.py checks.

    Raises:
        ShapeError: the shapes differ.

    Source:
        arXiv:2203.08679, equations 4 to 8 and algorithm 1.
    """
    same_shape(student, teacher)
    target = one_hot(labels, student.shape[1]).bool()
    log_p = log_softmax(student / temperature, dim=1)
    log_q = log_softmax(teacher.detach() / temperature, dim=1)
    scale = temperature**2
    tckd = kl_div(
        _target_and_rest(log_p, target),
        _target_and_rest(log_q, target),
        reduction="batchmean",
        log_target=True,
    )
    rest = (len(labels), student.shape[1] - 1)
    nckd = kl_div(
        log_softmax(log_p[~target].view(rest), dim=1),
        log_softmax(log_q[~target].view(rest), dim=1),
        reduction="batchmean",
        log_target=True,
    )
    return tckd * scale, nckd * scale


def _target_and_rest(log_p: Tensor, target: Tensor) -> Tensor:
    """Compute (N, 2) log probabilities: of the target class, and of all others together."""
    at_target = log_p[target]
    rest = log_p.masked_fill(target, float("-inf")).logsumexp(dim=1)
    return stack((at_target, rest), dim=1)
