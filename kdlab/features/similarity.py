"""Similarity-preserving distillation, 2019 (arXiv:1907.09682)."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from kdlab.config import register
from kdlab.features.feature_loss import FeatureLossSpec, rows, unit


@register("features/similarity")
@dataclass(frozen=True, kw_only=True)
class Similarity(FeatureLossSpec):
    """Similarities between the samples of a batch: equations 1 to 4."""

    needs_width: ClassVar[bool] = False

    def distance(self, student: Tensor, teacher: Tensor) -> Tensor:
        return (similarities(student) - similarities(teacher.detach())).square().mean()


def similarities(features: Tensor) -> Tensor:
    """(N, ...) -> (N, N), each row of length 1."""
    flat = rows(features)
    return unit(flat @ flat.T)
