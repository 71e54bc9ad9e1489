"""What a training loop asks of the other ranks of its student, if it has any.

`Ranks` is a student that trains alone. `ProcessGroupRanks` is one rank of several under
synchronous all-reduce (EDL-Dist, Algorithm 2 line 7: the average of θ_j, carried out on
the gradients, which for plain SGD from equal weights is the same).

What all ranks must do at the same step (save, stop, pause) is agreed on beside the gradients:
a vector of a few numbers goes round asynchronously and is read one step later, so nobody
waits for it.
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
    """What came of one step over all ranks."""

    loss: Tensor  # mean over the whole batch
    all: ChangeRequest


class GenerationEnds(Exception):
    """A rank comes or goes gracefully: the state is saved, all begin again from there."""


class Ranks:
    """The other ranks of a student: none, where a subclass has no others."""

    rank, world, lr_scale = 0, 1, 1.0

    def __init__(self) -> None:
        self._agreed: list[StepAgreement] = []
        self._losses: list[Tensor] = []

    def join_norms(self, model: nn.Module) -> None:
        """Have its batch norms look at the rows of all ranks, where that was asked for."""

    def wrap(self, model: nn.Module) -> nn.Module:
        return model

    def weigh(self, loss: Tensor, rows: int, of_rows: int) -> Tensor:
        """A rank's mean loss, so that the averaged gradient is that of the whole batch."""
        return loss

    def average_gradients(self, beside: nn.Module) -> None:
        """Have what is trained beside the wrapped model learn from all rows."""

    def after_step(self, loss: Tensor, part: float, request: ChangeRequest) -> None:
        """Tell the others of this step; `part` is this rank's share of its rows."""
        self._losses.append(loss)
        self._agreed.append(StepAgreement(loss, request))

    def agreed(self, *, last: bool = False) -> list[StepAgreement]:
        """Steps on which all have spoken and that nobody has acted on yet.

        With `last` (after an epoch's last step) none is left out.
        """
        found, self._agreed = self._agreed, []
        return found

    def agree(self, request: ChangeRequest) -> ChangeRequest:
        """At once, where all ranks stand at the same place: before training, in a pause."""
        return request

    def losses(self) -> list[Tensor]:
        """Mean losses of the steps since the last call, the newest included."""
        found, self._losses = self._losses, []
        return found

    def sum_counts(self, counts: Tensor) -> Tensor:
        return counts

    def average_buffers(self, model: nn.Module, part: float) -> None:
        """Running statistics of batch norm, which each rank saw of its own rows."""

    def gather(self, tensor: Tensor) -> list[Tensor]:
        return [tensor]


class ProcessGroupRanks(Ranks):
    """A rank of the default process group of torch.distributed, which is up."""

    def __init__(
        self, device: torch.device, lr_scale: float = 1.0, *, sync_norms: bool = True
    ) -> None:
        super().__init__()
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.device, self.lr_scale, self.sync_norms = device, lr_scale, sync_norms
        self._under_way: deque[tuple[dist.Work, Tensor]] = deque()
        self._shown = 0  # of those under way: their losses were handed out already

    def join_norms(self, model: nn.Module) -> None:
        if self.sync_norms:
            synchronise(model, None)

    def wrap(self, model: nn.Module) -> nn.Module:
        devices = [self.device.index or 0] if self.device.type == "cuda" else None
        # Buffers are averaged when they are looked at; broadcasting them every step would
        # throw the other ranks' statistics away.
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
        for mean, gradient in zip(
            (flat / self.world).split([g.numel() for g in gradients]),
            gradients,
            strict=True,
        ):
            gradient.copy_(mean.view_as(gradient))

    def after_step(self, loss: Tensor, part: float, request: ChangeRequest) -> None:
        rest = _tensor(request).to(loss.device)
        numbers = torch.cat([(loss.double() * part).reshape(1), rest])
        self._under_way.append((dist.all_reduce(numbers, async_op=True), numbers))

    def agree(self, request: ChangeRequest) -> ChangeRequest:
        return agreed_by_all(request, device=self.device)

    def agreed(self, *, last: bool = False) -> list[StepAgreement]:
        found = []
        while len(self._under_way) > (0 if last else 1):
            work, numbers = self._under_way.popleft()
            work.wait()
            loss = numbers[0].float()
            if self._shown:
                self._shown -= 1
            else:
                self._losses.append(loss)
            found.append(StepAgreement(loss, ChangeRequest.of_all(numbers[1:].tolist())))
        return found

    def losses(self) -> list[Tensor]:
        found = super().losses()
        # Read, not acted on: all ranks act one step later, whoever looks at the loss now.
        for work, numbers in list(self._under_way)[self._shown :]:
            work.wait()
            found.append(numbers[0].float())
        self._shown = len(self._under_way)
        return found

    def sum_counts(self, counts: Tensor) -> Tensor:
        moved = counts.to(self.device, copy=True)
        dist.all_reduce(moved)
        return moved.cpu()

    def average_buffers(self, model: nn.Module, part: float) -> None:
        average_statistics(model, part)

    def gather(self, tensor: Tensor) -> list[Tensor]:
        moved = tensor.to(self.device)
        found = [torch.empty_like(moved) for _ in range(self.world)]
        dist.all_gather(found, moved)
        return [t.cpu() for t in found]


def agreed_by_all(
    request: ChangeRequest,
    group: dist.ProcessGroup | None = None,
    device: torch.device | None = None,
) -> ChangeRequest:
    """What all want now; each waits for all others here."""
    numbers = _tensor(request).to(device)
    dist.all_reduce(numbers, group=group)
    return ChangeRequest.of_all(numbers.tolist())


@torch.no_grad()
def average_statistics(
    model: nn.Module, part: float, group: dist.ProcessGroup | None = None
) -> None:
    """Average what batch norms know, where each device has seen its part of the rows."""
    for buffer in model.buffers():
        if buffer.is_floating_point():
            buffer.mul_(part)
            dist.all_reduce(buffer, group=group)


def _tensor(request: ChangeRequest) -> Tensor:
    """A vector whose sum over all ranks is what they agree on."""
    return torch.tensor(request.numbers(), dtype=torch.float64)
