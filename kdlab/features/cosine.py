"""Directions of features, as label-free distillation of backbones compares them."""

from dataclasses import dataclass

from torch import Tensor
from torch.nn.functional import cosine_similarity

from kdlab.config import register
from kdlab.features.feature_loss import FeatureLossSpec, rows


@register("features/cosine")
@dataclass(frozen=True, kw_only=True)
class Cosine(FeatureLossSpec):
    """One minus the cosine between both, after a projector."""

    def distance(self, student: Tensor, teacher: Tensor) -> Tensor:
        return 1 - cosine_similarity(rows(student), rows(teacher.detach())).mean()
