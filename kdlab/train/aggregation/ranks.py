"""Interface of a training loop to the other ranks of its student, if it has any.

`Ranks` is a student with one rank. `ProcessGroupRanks` is one rank of several under synchronous
all-reduce (EDL-Dist, Algorithm 2 line 7: the average of θ_j, computed on the gradients, which is
equal for plain SGD from equal weights).

Ranks agree on what all must do at the same step (save, stop, pause) beside the gradients: a vector
of a few numbers is reduced asynchronously and read one step later, so no rank waits for it.
"""

from collections import deque
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from kdlab.changes.request import ChangeRequest
from kdlab.train.sync_norm import synchronise


@dataclass(frozen=True, slots=True)
class StepAgreement:
    """Result of one step over all ranks."""

    loss: Tensor  # mean over the whole batch
    all: ChangeRequest


class GenerationEnds(Exception):
    """A rank joins or leaves: the state is saved, and all ranks resume from it."""


class Ranks:
    """The ranks of a student; this base class has one."""

    rank, world, lr_scale = 0, 1, 1.0

    def __init__(self) -> None:
        self._agreed: list[StepAgreement] = []
        self._losses: list[Tensor] = []

    def join_norms(self, model: nn.Module) -> None:
        """Synchronise its batch norms over the rows of all ranks, where the spec has it."""

    def wrap(self, model: nn.Module) -> nn.Module:
        return model

    def weigh(self, loss: Tensor, rows: int, of_rows: int) -> Tensor:
        """Weight a rank's mean loss so that the averaged gradient is that of the whole batch."""
        return loss

    def average_gradients(self, beside: nn.Module) -> None:
        """Average the gradients of a module that is trained beside the wrapped model."""

    def after_step(self, loss: Tensor, part: float, request: ChangeRequest) -> None:
        """Share the loss and request of a step; `part` is this rank's share of its rows."""
        self._losses.append(loss)
        self._agreed.append(StepAgreement(loss, request))

    def agreed(self, *, last: bool = False) -> list[StepAgreement]:
        """Return the steps on which all ranks agree and that are not acted on yet.

        With `last` (after the last step of an epoch) pending ones are waited for.
        """
        agreements, self._agreed = self._agreed, []
        return agreements

    def agree(self, request: ChangeRequest) -> ChangeRequest:
        """Agree at once, where all ranks are at the same place: before training, in a pause."""
        return request

    def losses(self) -> list[Tensor]:
        """Return the mean losses of the steps since the last call, the newest included."""
        losses, self._losses = self._losses, []
        return losses

    def sum_counts(self, counts: Tensor) -> Tensor:
        return counts

    def average_buffers(self, model: nn.Module, part: float) -> None:
        """Average the statistics of batch norms, which each rank has of its own rows."""

    def gather(self, tensor: Tensor) -> list[Tensor]:
        return [tensor]


class ProcessGroupRanks(Ranks):
    """A rank of the initialised default process group of torch.distributed."""

    def __init__(
        self, device: torch.device, lr_scale: float = 1.0, *, sync_norms: bool = True
    ) -> None:
        super().__init__()
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.device, self.lr_scale, self.sync_norms = device, lr_scale, sync_norms
        self._pending: deque[tuple[dist.Work, Tensor]] = deque()
        self._shown = 0  # of the pending ones, how many losses were returned already

    def join_norms(self, model: nn.Module) -> None:
        if self.sync_norms:
            synchronise(model, None)

    def wrap(self, model: nn.Module) -> nn.Module:
        devices = [self.device.index or 0] if self.device.type == "cuda" else None
        # Buffers are averaged before an evaluation; a broadcast in every step would discard the
        # statistics of the other ranks.
        return DistributedDataParallel(model, device_ids=devices, broadcast_buffers=False)

    def weigh(self, loss: Tensor, rows: int, of_rows: int) -> Tensor:
        # DDP divides the sum of the gradients by the number of ranks.
        return loss * (self.world * rows / of_rows)

    def average_gradients(self, beside: nn.Module) -> None:
        gradients = [p.grad for p in beside.parameters() if p.grad is not None]
        if not gradients:
            return
        flat = torch.cat([g.reshape(-1) for g in gradients])
        dist.all_reduce(flat)
        means = (flat / self.world).split([g.numel() for g in gradients])
        for mean, gradient in zip(means, gradients, strict=True):
            gradient.copy_(mean.view_as(gradient))

    def after_step(self, loss: Tensor, part: float, request: ChangeRequest) -> None:
        rest = _tensor(request).to(loss.device)
        numbers = torch.cat([(loss.double() * part).reshape(1), rest])
        self._pending.append((dist.all_reduce(numbers, async_op=True), numbers))

    def agree(self, request: ChangeRequest) -> ChangeRequest:
        return agreed_by_all(request, device=self.device)

    def agreed(self, *, last: bool = False) -> list[StepAgreement]:
        agreements = []
        while len(self._pending) > (0 if last else 1):
            work, numbers = self._pending.popleft()
            work.wait()
            loss = numbers[0].float()
            if self._shown:
                self._shown -= 1
            else:
                self._losses.append(loss)
            agreements.append(
                StepAgreement(loss, ChangeRequest.from_sums(numbers[1:].tolist()))
            )
        return agreements

    def losses(self) -> list[Tensor]:
        losses = super().losses()
        # Only read: all ranks act one step later, whichever reads the loss now.
        for work, numbers in list(self._pending)[self._shown :]:
            work.wait()
            losses.append(numbers[0].float())
        self._shown = len(self._pending)
        return losses

    def sum_counts(self, counts: Tensor) -> Tensor:
        moved = counts.to(self.device, copy=True)
        dist.all_reduce(moved)
        return moved.cpu()

    def average_buffers(self, model: nn.Module, part: float) -> None:
        average_statistics(model, part)

    def gather(self, tensor: Tensor) -> list[Tensor]:
        moved = tensor.to(self.device)
        tensors = [torch.empty_like(moved) for _ in range(self.world)]
        dist.all_gather(tensors, moved)
        return [t.cpu() for t in tensors]


def agreed_by_all(
    request: ChangeRequest,
    group: dist.ProcessGroup | None = None,
    device: torch.device | None = None,
) -> ChangeRequest:
    """Sum the requests of all ranks; each waits for the others."""
    numbers = _tensor(request).to(device)
    dist.all_reduce(numbers, group=group)
    return ChangeRequest.from_sums(numbers.tolist())


@torch.no_grad()
def average_statistics(
    model: nn.Module, part: float, group: dist.ProcessGroup | None = None
) -> None:
    """Average the statistics of batch norms over devices, by their parts of the rows."""
    for buffer in model.buffers():
        if buffer.is_floating_point():
            buffer.mul_(part)
            dist.all_reduce(buffer, group=group)


def _tensor(request: ChangeRequest) -> Tensor:
    """Return the vector whose sum over all ranks is their agreement."""
    return torch.tensor(request.numbers(), dtype=torch.float64)
