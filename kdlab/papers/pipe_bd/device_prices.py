"""What no plan can be below: a price of each kind of device, and what stages cost at least.

A device is worth what it does of all blocks in a second, so that one of a quick kind is dearer. A
stage that is to be done in a step needs devices of some price at least, its all-reduce and its
transfers counted. Where all stages need more than all devices are worth, however the blocks are
cut, no plan has so short a step.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from math import inf, sqrt

from kdlab.papers.pipe_bd.group_rows import Counts, Groups

_HALVINGS = 4  # between a step that is too short and one that may be long enough
_SHORT = 1e-12  # seconds
_LESS = 1 - 1e-9  # a hair: sums in another order end in other bits


@dataclass(frozen=True, slots=True)
class DeviceDemand:
    """What plans below some limit need at least, in the price of devices."""

    before: list[float]  # for the blocks before each boundary
    behind: list[float]
    last: list[int]  # by its first block, where a stage stops at the latest


class DevicePrices:
    """Prices of the devices of each kind, for stages of these groups.

    Attributes:
        of: a device of each kind.
    """

    def __init__(self, groups: Groups, numbers: Counts, widest: int) -> None:
        self.groups, self.costs, self.numbers = groups, groups.costs, numbers
        self.widest = widest  # devices of a stage at most
        blocks, batch = range(self.costs.blocks), self.costs.batch
        works = [
            [self.costs.work_s(b, k.type, batch) for b in blocks] for k in groups.kinds
        ]
        self.of = [1 / max(_SHORT, sum(own)) for own in works]
        self.worth = self.price(numbers)
        self.needed = cache(self._needed)

    def part(self, left: Counts, limit: float) -> tuple[range, float]:
        """Bounds of that part of a plan below the limit for which these devices are left.

        They must be able to do all from its first block on, and the others all before.

        Returns:
            The blocks that it can begin with, and the highest price of its first stage.
        """
        needed, own = self.needed(limit), self.price(left) / _LESS
        others = (self.worth - self.price(left)) / _LESS + own * (1 / _LESS - 1)
        firsts = [
            first
            for first in range(self.costs.blocks)
            if needed.before[first] <= others and needed.behind[first] <= own
        ]
        if not firsts:
            return range(0), 0.0
        rest = min(needed.behind[needed.last[first]] for first in firsts)
        return range(firsts[0], firsts[-1] + 1), own - rest

    def price(self, devices: Sequence[int]) -> float:
        """Price of so many devices of each kind."""
        return sum(p * n for p, n in zip(self.of, devices, strict=True))

    def bound_s(self) -> float:
        """Seconds; no step is shorter, whatever the plan. Infinite where nothing fits."""
        if any(kind.memory < inf for kind in self.groups.kinds) and not self._may_be(inf):
            return inf
        # No stage is done before the mean of the blocks is, shared by all
        low = high = max(
            self.groups.least_work(self.numbers)[-1] / self.costs.blocks, _SHORT
        )
        while not self._may_be(high):
            low, high = high, 1.5 * high
        for _ in range(_HALVINGS if low < high else 0):
            middle = sqrt(low * high)
            low, high = (low, middle) if self._may_be(middle) else (middle, high)
        return low * _LESS

    def _may_be(self, limit: float) -> bool:
        return self.needed(limit).behind[0] <= self.worth / _LESS

    def _needed(self, limit: float) -> DeviceDemand:
        blocks = self.costs.blocks
        before, behind = [0.0, *[inf] * blocks], [*[inf] * blocks, 0.0]
        waits = self.groups.relay_until(self.costs.devices)
        work, stages = self.groups.least_work(self.numbers), []
        for first in range(blocks - 1, -1, -1):
            room = limit - waits[first]
            for stop in range(first + 1, blocks + 1):
                if work[stop] - work[first] > room:
                    break
                own = self._stage(first, stop, room)
                stages.append((first, stop, own))
                behind[first] = min(behind[first], own + behind[stop])
        for first, stop, own in sorted(stages):
            before[stop] = min(before[stop], before[first] + own)
        last = [0] * blocks
        for first, stop, own in stages:
            if before[first] + own + behind[stop] <= self.worth / _LESS:
                last[first] = max(last[first], stop)
        return DeviceDemand(before, behind, last)

    def _stage(self, first: int, stop: int, room: float) -> float:
        """The least price of devices that do a stage within some seconds."""
        batch, groups = self.costs.batch, self.groups
        rows = [groups.most_within(first, stop, kind, room, 0.0) for kind in groups.kinds]
        alone = min(
            (p for p, most in zip(self.of, rows, strict=True) if most >= batch), default=inf
        )
        devices = 1
        # More devices share for longer, so the fewest that are enough cost least.
        while devices <= self.widest and (most := max(rows)):
            enough = max(2, -(-batch // most))
            if enough <= devices:
                return min(alone, self._enough(rows))
            devices = enough
            shared = groups.least_all_reduce_s(first, stop, devices)
            rows = [
                groups.most_within(first, stop, kind, room, shared) for kind in groups.kinds
            ]
        return alone

    def _enough(self, rows: Sequence[int]) -> float:
        """The least price of devices that do the batch, of each kind so many rows each."""
        every = sorted(
            (p / r, p, r, n)
            for p, r, n in zip(self.of, rows, self.numbers, strict=True)
            if r
        )
        least = inf

        def take(kind: int, left: int, paid: float) -> None:
            nonlocal least
            if left <= 0:
                least = min(least, paid)
            elif kind < len(every) and paid + left * every[kind][0] < least:
                _, price, own, most = every[kind]
                for number in range(min(most, -(-left // own)), -1, -1):
                    take(kind + 1, left - number * own, paid + number * price)

        take(0, self.costs.batch, 0.0)
        return least
