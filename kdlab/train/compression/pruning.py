"""Compression to sparse models: the smallest weights become 0 (EC-DNN, footnote 4)."""

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import nn

from kdlab.config import Range, register
from kdlab.train.compression.distillation import Distillation
from kdlab.train.compression.kind import matrices


@register("train/compression/pruning")
@dataclass(frozen=True, kw_only=True)
class Pruning(Distillation):
    """Distillation, then the smallest weights of each layer become 0.

    By magnitude, as in Han et al. 2015 (arXiv:1506.02626); training between two compressions
    is dense (Han et al. 2017, arXiv:1607.04381).

    sparsity: share of the weights of each convolution and linear layer that become 0.
    """

    sparsity: Annotated[float, Range(gt=0, lt=1)] = 0.5

    @torch.no_grad()
    def reduce(self, net: nn.Module) -> None:
        for weight in matrices(net):
            count = int(self.sparsity * weight.numel())
            if count:
                flat = weight.abs().flatten()
                weight.view(-1)[flat.argsort(stable=True)[:count]] = 0.0
