"""What goes round beside the relay: losses, and what somebody wants of all.

Nobody waits for it: a device says its part of a step and hears everybody's some steps
later. All hear the same words at the same step, so all can act on them together.
"""

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import astuple, dataclass, field
from typing import Any, Self

import torch
import torch.distributed as dist
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Wish:
    """What one device wants of all, or what all of them want together.

    Attributes:
        stop: the user asked for the end; the state is saved before it.
        leave: save, and end this generation.
        pause: stand still until nobody wants it any more.
        save: a checkpoint.
        lr_factor: of the learning rate from here on, said by one device; 0 is not said.
    """

    stop: bool = False
    leave: bool = False
    pause: bool = False
    save: bool = False
    lr_factor: float = 0.0

    @property
    def ends_the_step(self) -> bool:
        """Whether nothing may be under way where it is fulfilled."""
        return self.stop or self.leave or self.pause or self.save

    def numbers(self) -> list[float]:
        return [float(value) for value in astuple(self)]

    @classmethod
    def of_all(cls, sums: list[float]) -> Self:
        """From the sums of everybody's numbers."""
        stop, leave, pause, save, lr_factor = sums
        return cls(stop > 0, leave > 0, pause > 0, save > 0, lr_factor)

    def __or__(self, later: "Wish") -> "Wish":
        return Wish(
            self.stop or later.stop,
            self.leave or later.leave,
            self.pause or later.pause,
            self.save or later.save,
            later.lr_factor or self.lr_factor,
        )


_NUMBERS = len(Wish().numbers())


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

    def say(self, step: int, losses: Mapping[int, float], wish: Wish) -> None:
        said = torch.zeros(self.blocks + _NUMBERS, dtype=torch.float64)
        for block, loss in losses.items():
            said[block] = loss
        said[self.blocks :] = torch.tensor(wish.numbers(), dtype=torch.float64)
        work = dist.all_reduce(said, group=self.group, async_op=True)
        self.under_way.append((step, work, said))

    def heard(self, now: int) -> Iterator[tuple[int, list[float], Wish]]:
        """Words said `lag` steps ago: step, losses by block, what all want."""
        while self.under_way and self.under_way[0][0] <= now - self.lag:
            step, work, said = self.under_way.popleft()
            work.wait()
            yield (
                step,
                said[: self.blocks].tolist(),
                Wish.of_all(said[self.blocks :].tolist()),
            )


def agreed(group: Any, wish: Wish) -> Wish:
    """What all want now; every device waits for all others here."""
    said = torch.tensor(wish.numbers(), dtype=torch.float64)
    dist.all_reduce(said, group=group)
    return Wish.of_all(said.tolist())
