"""Attention transfer, Zagoruyko and Komodakis 2017 (arXiv:1612.03928)."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from kdlab.config import register
from kdlab.features.feature_loss import FeatureLossSpec, unit


@register("features/attention")
@dataclass(frozen=True, kw_only=True)
class Attention(FeatureLossSpec):
    """Spatial attention of maps: mean squares over the channels, equation 2."""

    needs_width: ClassVar[bool] = False
    is_spatial: ClassVar[bool] = True

    def distance(self, student: Tensor, teacher: Tensor) -> Tensor:
        return (attention(student) - attention(teacher.detach())).square().mean()


def attention(maps: Tensor) -> Tensor:
    """(N, C, H, W) -> (N, H·W) of length 1: the authors' map with p = 2."""
    return unit(maps.square().mean(1).flatten(1))
