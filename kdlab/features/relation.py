"""Relational distillation, Park et al. 2019 (RKD, arXiv:1904.05068)."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import smooth_l1_loss

from kdlab.config import register
from kdlab.config.spec import NOT_NEGATIVE
from kdlab.features.feature_loss import FeatureLossSpec, rows, unit


@register("features/relation")
@dataclass(frozen=True, kw_only=True)
class Relation(FeatureLossSpec):
    """Distances between pairs of samples, and angles between three: equations 4 to 8.

    distance_weight, angle_weight: the authors' are 25 and 50 on images.
    """

    needs_width: ClassVar[bool] = False

    distance_weight: Annotated[float, NOT_NEGATIVE] = 25.0
    angle_weight: Annotated[float, NOT_NEGATIVE] = 50.0

    def distance(self, student: Tensor, teacher: Tensor) -> Tensor:
        student_rows, teacher_rows = rows(student), rows(teacher.detach())
        distance_loss = smooth_l1_loss(distances(student_rows), distances(teacher_rows))
        angle_loss = smooth_l1_loss(angles(student_rows), angles(teacher_rows))
        return self.distance_weight * distance_loss + self.angle_weight * angle_loss


def distances(features: Tensor) -> Tensor:
    """(N, D) -> (N, N) Euclidean distances, over their mean. Equal rows have no gradient."""
    squares = features.square().sum(1)
    square = squares[:, None] + squares[None] - 2 * features @ features.T
    # Equal rows differ by rounding, and the gradient of its root has no bound.
    far = square > 1e-6 * (squares[:, None] + squares[None])
    apart = torch.where(far, square, 1.0).sqrt() * far
    return apart / apart[far].mean() if far.any() else apart


def angles(features: Tensor) -> Tensor:
    """(N, D) -> (N³,): cosines of the angle at one sample between two others."""
    lines = unit(features[None] - features[:, None], dim=2)
    return torch.bmm(lines, lines.transpose(1, 2)).flatten()
