"""Agree on losses and control requests beside the relay, without waiting.

An asynchronous all-reduce carries them and is read `lag` steps later. All devices read the same
sums at the same step, so all can act on them together.
"""

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor

from kdlab.changes.request import ChangeRequest

_NUMBERS = len(ChangeRequest(values=(0.0,)).numbers())  # lr_factor alone is changed


@dataclass(slots=True)
class StepConsensus:
    """Sums of what all devices report of each step, read `lag` steps later."""

    group: dist.ProcessGroup  # of all devices
    blocks: int
    lag: int  # steps between report and reading, more than devices are ever apart
    under_way: deque[tuple[int, dist.Work, Tensor]] = field(default_factory=deque)

    def report(
        self, step: int, losses: Mapping[int, float], request: ChangeRequest
    ) -> None:
        """Start sending this device's losses by block, and its request."""
        numbers = torch.zeros(self.blocks + _NUMBERS, dtype=torch.float64)
        for block, loss in losses.items():
            numbers[block] = loss
        numbers[self.blocks :] = torch.tensor(request.numbers(), dtype=torch.float64)
        work = dist.all_reduce(numbers, group=self.group, async_op=True)
        self.under_way.append((step, work, numbers))

    def agreed_at(self, now: int) -> Iterator[tuple[int, list[float], ChangeRequest]]:
        """Yield the reports of `lag` steps ago: step, losses by block, and the joint request."""
        while self.under_way and self.under_way[0][0] <= now - self.lag:
            step, work, numbers = self.under_way.popleft()
            work.wait()
            losses, request = numbers.tensor_split([self.blocks])
            yield step, losses.tolist(), ChangeRequest.from_sums(request.tolist())
