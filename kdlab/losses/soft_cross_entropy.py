"""Cross entropy with the teacher's probabilities: the loss of EDL's recipe.

EDL's released ResNet example uses it alone (hard_weight 0, soft_weight 1) at T = 1.
"""

from dataclasses import dataclass
from typing import Annotated

from torch import Tensor
from torch.nn.functional import log_softmax, softmax

from kdlab.config import register
from kdlab.config.spec import NOT_NEGATIVE, POSITIVE
from kdlab.losses.soft_loss import LossSpec, same_shape


@register("losses/soft_cross_entropy")
@dataclass(frozen=True, kw_only=True)
class SoftCrossEntropy(LossSpec):
    """Cross entropy to the teacher's probabilities, times T²; EDL trains at T = 1."""

    hard_weight: Annotated[float, NOT_NEGATIVE] = 0.0
    soft_weight: Annotated[float, NOT_NEGATIVE] = 1.0
    temperature: Annotated[float, POSITIVE] = 1.0

    def against_draws(self) -> str:
        return "" if self.temperature == 1 else f"loss.temperature is {self.temperature:g}"

    def soft(self, student: Tensor, teacher: Tensor, labels: Tensor) -> Tensor:
        return soft_cross_entropy(student, teacher, self.temperature)


def soft_cross_entropy(student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """Compute -Σ_c q_c log p_c, mean over the batch; q, p softened by T.

    Its gradient is that of the KL divergence; its smallest value is the teacher's
    entropy, not zero. Multiplied by T² like `hinton` so that T can be tuned.

    Args:
        student: (N, C) logits.
        teacher: (N, C) logits of the same samples; gets no gradient.
        temperature: T > 0, no unit.

    Returns:
        Scalar in nats per sample.

    Raises:
        ShapeError: the shapes differ.

    Source:
        EDL-Dist Algorithm 2, line 5 (ψ); equation 1 for the softmax at T.
    """
    same_shape(student, teacher)
    q = softmax(teacher.detach() / temperature, dim=1)
    log_p = log_softmax(student / temperature, dim=1)
    return -(q * log_p).sum(dim=1).mean() * temperature**2
