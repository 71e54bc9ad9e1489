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
        own, right = rows(student), rows(teacher.detach())
        far = smooth_l1_loss(distances(own), distances(right))
        wide = smooth_l1_loss(angles(own), angles(right))
        return self.distance_weight * far + self.angle_weight * wide


def distances(features: Tensor) -> Tensor:
    """(N, D) -> (N, N): Euclidean, over the mean of those that are not 0."""
    squares = features.square().sum(1)
    square = (squares[:, None] + squares[None] - 2 * features @ features.T).clamp_min(1e-12)
    apart = square.sqrt() * (1 - torch.eye(len(features), device=features.device))
    return apart / apart[apart > 0].mean()


def angles(features: Tensor) -> Tensor:
    """(N, D) -> (N³,): cosines of the angle at one sample between two others."""
    lines = unit(features[None] - features[:, None], dim=2)
    return torch.bmm(lines, lines.transpose(1, 2)).flatten()
