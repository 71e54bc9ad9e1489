"""Hints, Romero et al. 2015 (FitNets, arXiv:1412.6550)."""

from dataclasses import dataclass

from torch import Tensor
from torch.nn.functional import mse_loss

from kdlab.config import register
from kdlab.features.feature_loss import FeatureLossSpec


@register("features/hint")
@dataclass(frozen=True, kw_only=True)
class Hint(FeatureLossSpec):
    """Mean squared difference after a projector: the mean of equation 3 over all numbers."""

    def distance(self, student: Tensor, teacher: Tensor) -> Tensor:
        return mse_loss(student, teacher.detach())
