"""Compression to weights of few bits (EC-DNN, footnote 4)."""

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import nn

from kdlab.config import Range, register
from kdlab.train.compression.distillation import Distillation
from kdlab.train.compression.kind import matrices


@register("train/compression/quantisation")
@dataclass(frozen=True, kw_only=True)
class Quantisation(Distillation):
    """Distillation, then the weights of each channel are rounded to levels of equal distance.

    Symmetric, the largest weight of a channel being the last level (Jacob et al. 2018,
    arXiv:1712.05877, section 2.1). Norms and biases are not rounded.

    bits: of a weight, sign included.
    """

    bits: Annotated[int, Range(ge=2, le=16)] = 8

    @torch.no_grad()
    def reduce(self, net: nn.Module) -> None:
        last = 2 ** (self.bits - 1) - 1
        for weight in matrices(net):
            rows = weight.view(len(weight), -1)
            step = rows.abs().amax(1, keepdim=True).clamp_min(1e-12) / last
            rows.copy_((rows / step).round() * step)
