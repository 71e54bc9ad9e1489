"""Soft-label distillation, Hinton et al. 2015 (arXiv:1503.02531), section 2."""

from dataclasses import dataclass
from typing import Annotated, Any

from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn.functional import log_softmax

from kdlab.config import register
from kdlab.config.spec import POSITIVE
from kdlab.losses.soft_loss import LossSpec, same_shape, standardised


@register("losses/hinton")
@dataclass(frozen=True, kw_only=True)
class Hinton(LossSpec):
    """KL divergence of softened outputs times T². The defaults are a middle ground.

    standardise: z-scores of the logits first (arXiv:2403.01427), whose authors take
        temperature 2 and soft_weight 9 on CIFAR-100.
    """

    temperature: Annotated[float, POSITIVE] = 4.0
    standardise: bool = False

    def against_draws(self) -> str:
        if self.standardise:
            return "loss.standardise is true"
        return "" if self.temperature == 1 else f"loss.temperature is {self.temperature:g}"

    def soft(self, student: Tensor, teacher: Tensor, labels: Tensor) -> Tensor:
        if self.standardise:
            same_shape(student, teacher)
            student, teacher = standardised(student), standardised(teacher)
        return hinton_kd(student, teacher, self.temperature)


def hinton_kd(student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """KL divergence from the softened teacher to the softened student, times T².

    T² keeps the size of the gradient independent of T (for large T), so the weights
    keep their meaning while T is tuned. It multiplies the soft term only.

    Args:
        student: (N, C) logits, not probabilities.
        teacher: (N, C) logits of the same samples, row by row; gets no gradient.
        temperature: T > 0, no unit.

    Returns:
        Scalar in nats per sample: summed over C, mean over N. Zero where both agree.

    Raises:
        ShapeError: the shapes differ, for example by the number of classes.

    Source:
        arXiv:1503.02531, section 2: equation 1 and the remark on T².
        Value checked against a NumPy computation in tests/losses/test_values.py.
    """
    same_shape(student, teacher)
    value: Tensor = _SoftenedDivergence.apply(student, teacher.detach(), temperature)
    return value


class _SoftenedDivergence(Function):
    """The loss with its gradient T (p - q) / N written out (the paper's equation 2, times T²).

    Overhead of small operations dominates: through autograd's graph the soft term takes
    0.26 ms of a batch on a CPU, this way 0.2; a step may be 5 ms.
    """

    @staticmethod
    def forward(ctx: Any, student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
        log_p = log_softmax(student / temperature, dim=1)
        log_q = log_softmax(teacher / temperature, dim=1)
        q, rows = log_q.exp(), len(student)
        ctx.save_for_backward((log_p.exp() - q) * (temperature / rows))
        return (q * (log_q - log_p)).sum() * (temperature**2 / rows)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, outer: Tensor) -> tuple[Tensor, None, None]:
        (gradient,) = ctx.saved_tensors
        return gradient * outer, None, None
