"""Compression to layers of low rank (EC-DNN, footnote 4)."""

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import nn

from kdlab.config import Range, register
from kdlab.train.compression.distillation import Distillation
from kdlab.train.compression.kind import matrices


@register("train/compression/low_rank")
@dataclass(frozen=True, kw_only=True)
class LowRank(Distillation):
    """Distillation, then each layer becomes the nearest one of a lower rank.

    A layer is a matrix of outputs by all other dimensions; its largest singular values stay
    (Denton et al. 2014, arXiv:1404.0736).

    share: of the rank that each convolution and linear layer could have; at least 1 is left.
    """

    share: Annotated[float, Range(gt=0, lt=1)] = 0.5

    @torch.no_grad()
    def reduce(self, net: nn.Module) -> None:
        for weight in matrices(net):
            rows = weight.reshape(len(weight), -1)
            rank = max(1, round(self.share * min(rows.shape)))
            left, values, right = torch.linalg.svd(rows, full_matrices=False)
            near = (left[:, :rank] * values[:rank]) @ right[:rank]
            weight.copy_(near.view_as(weight))
