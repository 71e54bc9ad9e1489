"""What goes round beside the relay: losses, and who wants to stop.

Nobody waits for it: a device says its part of a step and hears everybody's some steps
later. All hear the same words at the same step, so all can act on them together.
"""

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


@dataclass(slots=True)
class Words:
    """What all devices say of each step, read when all have spoken for long.

    Attributes:
        group: process group of all devices.
        blocks: number of them.
        lag: steps between saying and hearing, more than devices are ever apart.
    """

    group: Any
    blocks: int
    lag: int
    under_way: deque[tuple[int, Any, Tensor]] = field(default_factory=deque)

    def say(
        self, step: int, losses: Mapping[int, float], *, stop: bool, leave: bool
    ) -> None:
        said = torch.zeros(self.blocks + 2, dtype=torch.float64)
        for block, loss in losses.items():
            said[block] = loss
        said[-2:] = torch.tensor([stop, leave], dtype=torch.float64)
        work = dist.all_reduce(said, group=self.group, async_op=True)
        self.under_way.append((step, work, said))

    def heard(self, now: int) -> Iterator[tuple[int, list[float], bool, bool]]:
        """Words said `lag` steps ago: step, losses by block, stop, leave."""
        while self.under_way and self.under_way[0][0] <= now - self.lag:
            step, work, said = self.under_way.popleft()
            work.wait()
            yield step, said[:-2].tolist(), bool(said[-2] > 0), bool(said[-1] > 0)
