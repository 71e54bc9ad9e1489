"""Batch norm over the rows of a whole group of devices, on any backend.

torch's SyncBatchNorm takes CUDA tensors only; this one goes over whatever the process
group speaks, so that a shared stage on CPUs trains as one device would.
"""

from typing import Any

import torch
import torch.distributed as dist
from timm.layers import BatchNormAct2d
from torch import Tensor, nn
from torch.distributed.nn.functional import all_reduce

from kdlab.errors import ModelError


class GroupBatchNorm(nn.BatchNorm2d):
    """As `nn.BatchNorm2d`, with the mean and variance of all the group's rows.

    What follows the norm in timm's (`drop`, `act`) follows here too, under the same names,
    so that a state goes into either.
    """

    group: Any = None
    drop: nn.Module
    act: nn.Module

    @classmethod
    def of(cls, norm: nn.BatchNorm2d, group: Any) -> "GroupBatchNorm":
        """The same parameters and buffers."""
        made = cls(
            norm.num_features,
            norm.eps,
            norm.momentum,
            affine=norm.affine,
            track_running_stats=norm.track_running_stats,
        )
        made.weight, made.bias = norm.weight, norm.bias
        made.running_mean, made.running_var = norm.running_mean, norm.running_var
        made.num_batches_tracked = norm.num_batches_tracked
        made.group = group
        made.drop = getattr(norm, "drop", nn.Identity())
        made.act = getattr(norm, "act", nn.Identity())
        made.train(norm.training)
        return made

    def forward(self, input: Tensor) -> Tensor:
        """(N, C, H, W) -> (N, C, H, W)."""
        normal = self._normal(input) if self.training else super().forward(input)
        result: Tensor = self.act(self.drop(normal))
        return result

    def _normal(self, input: Tensor) -> Tensor:
        count = torch.tensor(
            [input.numel() / self.num_features], dtype=input.dtype, device=input.device
        )
        first = torch.cat([input.sum((0, 2, 3)), count])
        first = all_reduce(first, group=self.group)
        total = first[-1].detach()
        mean = first[:-1] / total
        centred = input - mean[:, None, None]
        # In two passes: the mean of squares less the square of the mean loses digits.
        variance = all_reduce((centred * centred).sum((0, 2, 3)), group=self.group) / total
        self._remember(mean.detach(), variance.detach(), float(total))
        normal = centred * torch.rsqrt(variance + self.eps)[:, None, None]
        if not self.affine:
            return normal
        return normal * self.weight[:, None, None] + self.bias[:, None, None]

    @torch.no_grad()
    def _remember(self, mean: Tensor, variance: Tensor, total: float) -> None:
        if self.running_mean is None or self.running_var is None:
            return
        assert self.num_batches_tracked is not None
        self.num_batches_tracked += 1
        share = self.momentum
        if share is None:  # a plain average over all batches
            share = 1 / float(self.num_batches_tracked)
        self.running_mean.lerp_(mean, share)
        self.running_var.lerp_(variance * total / max(1.0, total - 1), share)


def synchronise(module: nn.Module, group: Any) -> nn.Module:
    """The module with every batch norm taken over the group; parameters stay the same.

    Raises:
        ModelError: a batch norm of a kind that is not known here.
    """
    if dist.get_world_size(group) == 1 or isinstance(module, GroupBatchNorm):
        return module
    if type(module) is nn.BatchNorm2d or isinstance(module, BatchNormAct2d):
        return GroupBatchNorm.of(module, group)
    if isinstance(module, nn.modules.batchnorm._BatchNorm):
        raise ModelError(
            f"{type(module).__name__} cannot be taken over a group of devices. Set norm: local, "
            "or a plan whose stages have one device each."
        )
    for name, child in module.named_children():
        setattr(module, name, synchronise(child, group))
    return module
