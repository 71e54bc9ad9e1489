"""Consensus on each step: losses and control requests travel beside the relay.

They go by an asynchronous all-reduce that is read `lag` steps later, so no device waits. All
read the same sums at the same step, so all can act on them together.
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
    """What all devices say of each step, read when all have spoken for long."""

    group: dist.ProcessGroup  # of all devices
    blocks: int
    lag: int  # steps between saying and hearing, more than devices are ever apart
    under_way: deque[tuple[int, dist.Work, Tensor]] = field(default_factory=deque)

    def report(
        self, step: int, losses: Mapping[int, float], request: ChangeRequest
    ) -> None:
        numbers = torch.zeros(self.blocks + _NUMBERS, dtype=torch.float64)
        for block, loss in losses.items():
            numbers[block] = loss
        numbers[self.blocks :] = torch.tensor(request.numbers(), dtype=torch.float64)
        work = dist.all_reduce(numbers, group=self.group, async_op=True)
        self.under_way.append((step, work, numbers))

    def agreed_at(self, now: int) -> Iterator[tuple[int, list[float], ChangeRequest]]:
        """What was reported `lag` steps ago: step, losses by block, what all want."""
        while self.under_way and self.under_way[0][0] <= now - self.lag:
            step, work, numbers = self.under_way.popleft()
            work.wait()
            yield (
                step,
                numbers[: self.blocks].tolist(),
                ChangeRequest.of_all(numbers[self.blocks :].tolist()),
            )
