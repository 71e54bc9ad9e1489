"""Batch norm over the rows of a whole group of devices, on any backend.

torch's SyncBatchNorm takes CUDA tensors only; this one goes over whatever the process
group speaks, so that a shared stage on CPUs trains as one device would.
"""

from typing import Any, TypeGuard

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn.functional import batch_norm

from kdlab.errors import ModelError


class GroupBatchNorm(nn.BatchNorm2d):
    """As `nn.BatchNorm2d`, with the mean and variance of all the group's rows.

    What follows the norm in timm's (`drop`, `act`) follows here too, under the same names,
    so that a state goes into either.
    """

    group: dist.ProcessGroup | None = None
    alone = False  # for a copy that only one device computes with
    drop: nn.Module
    act: nn.Module

    @classmethod
    def of(cls, norm: nn.BatchNorm2d, group: dist.ProcessGroup | None) -> "GroupBatchNorm":
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
        if self.training and not self.alone:
            normal, mean, variance, total = _Normalised.apply(
                input, self.weight, self.bias, self.eps, self.group
            )
            self._remember(mean, variance, float(total))
        else:
            normal = super().forward(input)
        result: Tensor = self.act(self.drop(normal))
        return result

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


class _Normalised(Function):
    """Normalised by all rows of a group, with the gradient written out.

    Each device's mean and variance are joined by counts (Chan et al. 1979), so no digits
    are lost to a difference of squares, and one message goes round in each direction. The
    gradient is that of torch's fused kernel for this device's rows alone, put right by what
    the others' rows change in its two sums.
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
        mean, variance = torch.batch_norm_update_stats(input, None, None, 0.0)
        own = torch.cat([mean, variance, mean.new_tensor([input.numel() / channels])])
        everyone = [torch.empty_like(own) for _ in range(dist.get_world_size(group))]
        dist.all_gather(everyone, own, group=group)
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
        everyone = sums.clone()
        dist.all_reduce(everyone, group=ctx.group)
        along_mean, along_normal = sums / rows - everyone / total
        slope = along_normal * scale
        factor = (scale * plain)[:, None, None]
        inner.addcmul_(input, factor * slope[:, None, None])
        inner.add_(factor * (along_mean - slope * mean)[:, None, None])
        if weight is None:
            return inner, None, None, None, None
        return inner, of_weight, of_bias, None, None


def leave_alone(module: nn.Module) -> nn.Module:
    """The module, whose batch norms look at this device's rows only from now on."""
    for child in module.modules():
        if isinstance(child, GroupBatchNorm):
            child.alone = True
    return module


def synchronise(module: nn.Module, group: dist.ProcessGroup | None) -> nn.Module:
    """The module with every batch norm taken over the group; parameters stay the same.

    Raises:
        ModelError: a batch norm of a kind that is not known here.
    """
    check_norms(module)
    if dist.get_world_size(group) == 1 or isinstance(module, GroupBatchNorm):
        return module
    if type(module) is nn.BatchNorm2d or _is_timms(module):
        return GroupBatchNorm.of(module, group)
    for name, child in module.named_children():
        setattr(module, name, synchronise(child, group))
    return module


def _is_timms(module: nn.Module) -> TypeGuard[nn.BatchNorm2d]:
    """Whether it is timm's BatchNormAct2d, without the seconds timm's import takes."""
    return any(
        cls.__name__ == "BatchNormAct2d" and cls.__module__.startswith("timm.")
        for cls in type(module).__mro__
    )


def check_norms(module: nn.Module) -> None:
    """Whether all its batch norms can be taken over a group.

    Raises:
        ModelError: one of a kind that is not known here.
    """
    for name, child in module.named_modules():
        known = type(child) in (nn.BatchNorm2d, GroupBatchNorm) or _is_timms(child)
        if isinstance(child, nn.modules.batchnorm._BatchNorm) and not known:
            raise ModelError(
                f"{name} is a {type(child).__name__}, which cannot be taken over a group of "
                "devices. Set method.bn=local (Pipe-BD) or aggregation.batch_norm=local (a "
                "student of several ranks), or use one device."
            )
