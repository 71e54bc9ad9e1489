"""Batch norm over the rows of a whole group of devices, on any backend.

torch's SyncBatchNorm takes CUDA tensors only; this one uses any backend of the process
group, so that a shared stage on CPUs trains as one device would.
"""

from typing import Any, TypeGuard, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn.functional import batch_norm

from kdlab.errors import ModelError


class GroupBatchNorm(nn.BatchNorm2d):
    """`nn.BatchNorm2d` with the mean and variance of the rows of the whole group.

    timm's `drop` and `act` follow the norm here too, under the same names, so that either can load
    the other's state.
    """

    group: dist.ProcessGroup | None = None
    is_local = False  # True for a copy on one device: its own rows only
    drop: nn.Module
    act: nn.Module

    @classmethod
    def share(
        cls, norm: nn.BatchNorm2d, group: dist.ProcessGroup | None
    ) -> "GroupBatchNorm":
        """Make a group norm that shares the parameters and buffers of `norm`."""
        shared = cls(
            norm.num_features,
            norm.eps,
            norm.momentum,
            affine=norm.affine,
            track_running_stats=norm.track_running_stats,
        )
        shared.weight, shared.bias = norm.weight, norm.bias
        shared.running_mean, shared.running_var = norm.running_mean, norm.running_var
        shared.num_batches_tracked = norm.num_batches_tracked
        shared.group = group
        shared.drop = getattr(norm, "drop", nn.Identity())
        shared.act = getattr(norm, "act", nn.Identity())
        shared.train(norm.training)
        return shared

    def forward(self, input: Tensor) -> Tensor:
        """(N, C, H, W) -> (N, C, H, W)."""
        if self.training and not self.is_local:
            normal, mean, variance, total = _Normalised.apply(
                input, self.weight, self.bias, self.eps, self.group
            )
            self._remember(mean, variance, float(total))
        else:
            normal = super().forward(input)
        return cast(Tensor, self.act(self.drop(normal)))

    @torch.no_grad()
    def _remember(self, mean: Tensor, variance: Tensor, total: float) -> None:
        if self.running_mean is None or self.running_var is None:
            return
        assert self.num_batches_tracked is not None
        self.num_batches_tracked += 1
        plain = 1 / float(self.num_batches_tracked)  # of an average over all batches
        share = plain if self.momentum is None else self.momentum
        self.running_mean.lerp_(mean, share)
        self.running_var.lerp_(variance * total / max(1.0, total - 1), share)


class _Normalised(Function):
    """Normalisation over all rows of a group, with an explicit gradient.

    Each device's mean and variance are joined by counts (Chan et al. 1979), so no digits
    are lost to a difference of squares, with one message in each direction. The gradient is
    that of torch's fused kernel for this device's rows, corrected by the other rows' part of its
    two sums.
    """

    @staticmethod
    def forward(
        ctx: Any,
        input: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        eps: float,
        group: dist.ProcessGroup | None,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        channels = input.shape[1]
        # Of half-precision rows a CPU computes float32 statistics only beside float32 ones
        exact = torch.promote_types(input.dtype, torch.float32)
        running = input.new_zeros(channels, dtype=exact)
        mean, variance = torch.batch_norm_update_stats(input, running, running.clone(), 0.0)
        local = torch.cat([mean, variance, mean.new_tensor([input.numel() / channels])])
        everyone = [torch.empty_like(local) for _ in range(dist.get_world_size(group))]
        dist.all_gather(everyone, local, group=group)
        means, variances, counts = torch.stack(everyone).split([channels, channels, 1], 1)
        total = counts.sum()
        mean = (counts * means).sum(0) / total
        variance = (counts * (variances + (means - mean) ** 2)).sum(0) / total
        ctx.save_for_backward(input, weight, mean, torch.rsqrt(variance + eps), total)
        ctx.group, ctx.eps = group, eps
        ctx.mark_non_differentiable(mean, variance, total)
        normal = batch_norm(input, mean, variance, weight, bias, training=False, eps=eps)
        return normal, mean, variance, total

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, outer: Tensor, *rest: Tensor
    ) -> tuple[Tensor, Tensor | None, Tensor | None, None, None]:
        input, weight, mean, scale, total = ctx.saved_tensors
        rows = input.numel() / input.shape[1]
        plain = torch.ones_like(mean) if weight is None else weight
        inner, of_weight, of_bias = torch.ops.aten.native_batch_norm_backward(
            outer, input, plain, None, None, mean, scale, True, ctx.eps, [True, True, True]
        )
        # Of this device's rows: sums of d and of d times the normalised input.
        sums = torch.stack([of_bias, of_weight])
        dist.all_reduce(everyone := sums.clone(), group=ctx.group)
        along_mean, along_normal = sums / rows - everyone / total
        slope = along_normal * scale
        factor = (scale * plain)[:, None, None]
        inner.addcmul_(input, factor * slope[:, None, None])
        inner.add_(factor * (along_mean - slope * mean)[:, None, None])
        if weight is None:
            return inner, None, None, None, None
        return inner, of_weight, of_bias, None, None


def make_local(module: nn.Module) -> nn.Module:
    """Make the batch norms of a module use the rows of this device only; return the module."""
    for child in module.modules():
        if isinstance(child, GroupBatchNorm):
            child.is_local = True
    return module


def synchronise(module: nn.Module, group: dist.ProcessGroup | None) -> nn.Module:
    """Replace every batch norm by one over the group; parameters are shared.

    Raises:
        ModelError: a batch norm is of an unsupported kind.
    """
    check_norms(module)
    if dist.get_world_size(group) == 1 or isinstance(module, GroupBatchNorm):
        return module
    if type(module) is nn.BatchNorm2d or _is_timms(module):
        return GroupBatchNorm.share(module, group)
    for name, child in module.named_children():
        setattr(module, name, synchronise(child, group))
    return module


def _is_timms(module: nn.Module) -> TypeGuard[nn.BatchNorm2d]:
    """True for timm's BatchNormAct2d, without importing timm, which takes seconds."""
    return any(
        cls.__name__ == "BatchNormAct2d" and cls.__module__.startswith("timm.")
        for cls in type(module).__mro__
    )


def check_norms(module: nn.Module) -> None:
    """Check that all batch norms can be synchronised over a group.

    Raises:
        ModelError: one is of an unsupported kind.
    """
    for name, child in module.named_modules():
        is_supported = type(child) in (nn.BatchNorm2d, GroupBatchNorm) or _is_timms(child)
        if isinstance(child, nn.modules.batchnorm._BatchNorm) and not is_supported:
            raise ModelError(
                f"{name} is a {type(child).__name__}, which cannot be taken over a group of "
                "devices. Set method.bn=local (Pipe-BD) or aggregation.batch_norm=local (a "
                "student of several ranks), or use one device."
            )
