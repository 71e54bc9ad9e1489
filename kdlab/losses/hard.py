"""Hard distillation, Touvron et al. 2021 (DeiT, arXiv:2012.12877, section 4)."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from torch import Tensor
from torch.nn.functional import cross_entropy

from kdlab.config import register
from kdlab.config.spec import SHARE
from kdlab.losses.soft_loss import LossSpec, same_shape


@register("losses/hard")
@dataclass(frozen=True, kw_only=True)
class Hard(LossSpec):
    """The teacher's likeliest class as a second label: equation 3, half of each.

    smoothing: of that label.
    """

    rests_at_equality: ClassVar[bool] = False  # it pulls to the likeliest class

    smoothing: Annotated[float, SHARE] = 0.0

    def soft(self, student: Tensor, teacher: Tensor, labels: Tensor) -> Tensor:
        same_shape(student, teacher)
        return cross_entropy(student, teacher.argmax(1), label_smoothing=self.smoothing)
