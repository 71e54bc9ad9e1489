"""Soft-label distillation, Hinton et al. 2015 (arXiv:1503.02531), section 2."""

from dataclasses import dataclass
from typing import Annotated

from torch import Tensor
from torch.nn.functional import kl_div, log_softmax

from kdlab.config import register
from kdlab.config.spec import POSITIVE
from kdlab.losses.soft_loss import LossSpec, same_shape


@register("losses/hinton")
@dataclass(frozen=True, kw_only=True)
class Hinton(LossSpec):
    """KL divergence of softened outputs times T². The defaults are a middle ground."""

    temperature: Annotated[float, POSITIVE] = 4.0

    def soft(self, student: Tensor, teacher: Tensor, labels: Tensor) -> Tensor:
        return hinton_kd(student, teacher, self.temperature)


def hinton_kd(student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """KL divergence from the softened teacher to the softened student, times T².

    T² keeps the size of the gradient independent of T (for large T), so the weights
    keep their meaning while T is tuned. It stands on the soft term only.

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
    log_p = log_softmax(student / temperature, dim=1)
    log_q = log_softmax(teacher.detach() / temperature, dim=1)
    return kl_div(log_p, log_q, reduction="batchmean", log_target=True) * temperature**2
