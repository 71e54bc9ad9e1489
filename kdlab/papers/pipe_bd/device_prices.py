"""Lower bound of the step time of all plans, by prices of devices (beyond the paper).

The price of a device is the share of all blocks that it does in a second, so a quick kind is
dearer. A stage with a given step time needs devices of some least price, its all-reduce and
transfers included. Where all stages need more than the price of all devices, however the blocks
are cut, no plan has so short a step. IV-C searches exhaustively, so it needs no bound.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from math import inf, pow, sqrt

from kdlab.papers.pipe_bd.group_rows import Counts, Groups

_HALVINGS = 6  # of a last factor of 1.5, which leave 0.6 %
_SHORT = 1e-12  # seconds
LESS = 1 - 1e-9  # a hair less: sums in another order differ in their last bits


@dataclass(frozen=True, slots=True)
class DeviceDemand:
    """Least prices of devices for plans below some step time."""

    before: list[float]  # for the blocks before each boundary
    behind: list[float]  # for the blocks from each boundary on
    last: list[int]  # by first block, the largest boundary that a stage can stop at


class DevicePrices:
    """Prices of the devices of each kind, for stages of these groups."""

    def __init__(
        self, groups: Groups, numbers: Counts, widest: int, *, exponent: float = 1.0
    ) -> None:
        self.groups, self.costs, self.numbers = groups, groups.costs, numbers
        self.widest = widest  # devices of a stage at most; 1 for TR
        blocks, batch = range(self.costs.blocks), self.costs.batch
        works = [
            [self.costs.work_s(b, k.type, batch) for b in blocks] for k in groups.kinds
        ]
        # Of a device of each kind: its speed, to this power
        self.of = [pow(1 / max(_SHORT, sum(own)), exponent) for own in works]
        self.worth = self.price(numbers)
        self.needed = cache(self._needed)

    def part(self, left: Counts, limit: float) -> tuple[range, float]:
        """Bounds for the rest of a plan below the limit, on the devices that are left.

        Returns:
            The blocks that the rest can begin with, and the highest price of its first stage.
        """
        demand, price_left = self.needed(limit), self.price(left) / LESS
        price_taken = (self.worth - self.price(left)) / LESS + price_left * (1 / LESS - 1)
        # The devices left must do all from the first block on, and the others all before it.
        firsts = [
            first
            for first in range(self.costs.blocks)
            if demand.before[first] <= price_taken and demand.behind[first] <= price_left
        ]
        if not firsts:
            return range(0), 0.0
        rest = min(demand.behind[demand.last[first]] for first in firsts)
        return range(firsts[0], firsts[-1] + 1), price_left - rest

    def price(self, devices: Sequence[int]) -> float:
        """Price of these numbers of devices of each kind."""
        return sum(p * n for p, n in zip(self.of, devices, strict=True))

    def bound_s(self) -> float:
        """Seconds that no step is shorter than; infinite where nothing fits into memory."""
        if any(kind.memory < inf for kind in self.groups.kinds) and not self._may_be(inf):
            return inf
        # The slowest stage takes at least an average block's time on all devices.
        low = high = max(
            self.groups.least_work(self.numbers)[-1] / self.costs.blocks, _SHORT
        )
        while not self._may_be(high):  # until a step may be so short
            low, high = high, 1.5 * high
        # With a barrier it is far below the plans (barrier_bound.py) however precise it is.
        halvings = _HALVINGS if self.groups.decoupled else 2
        for _ in range(halvings if low < high else 0):  # bisects, by ratios
            middle = sqrt(low * high)
            low, high = (low, middle) if self._may_be(middle) else (middle, high)
        return low * LESS

    def _may_be(self, limit: float) -> bool:
        return self.needed(limit).behind[0] <= self.worth / LESS

    def _needed(self, limit: float) -> DeviceDemand:
        blocks = self.costs.blocks
        before, behind = [0.0, *[inf] * blocks], [*[inf] * blocks, 0.0]
        # Fig. 3b: with a barrier a stage waits for the relay before it; 0 with DPU
        waits = self.groups.relay_until(self.costs.devices)
        work, stages = self.groups.least_work(self.numbers), []
        for first in range(blocks - 1, -1, -1):
            room = limit - waits[first]
            for stop in range(first + 1, blocks + 1):
                if work[stop] - work[first] > room:  # and so does every longer stage
                    break
                stage_price = self.stage(first, stop, room)
                stages.append((first, stop, stage_price))
                behind[first] = min(behind[first], stage_price + behind[stop])
        for first, stop, stage_price in sorted(stages):
            before[stop] = min(before[stop], before[first] + stage_price)
        last = [0] * blocks
        for first, stop, stage_price in stages:
            if before[first] + stage_price + behind[stop] <= self.worth / LESS:
                last[first] = max(last[first], stop)
        return DeviceDemand(before, behind, last)

    def stage(self, first: int, stop: int, room: float) -> float:
        """Least price of devices that do a stage within `room` seconds."""
        batch, groups = self.costs.batch, self.groups
        rows = [groups.most_within(first, stop, kind, room, 0.0) for kind in groups.kinds]
        single = min(
            (p for p, most in zip(self.of, rows, strict=True) if most >= batch), default=inf
        )
        devices = 1  # IV-C: a block that takes too long is split among more
        # More devices share for longer, so the fewest that are enough cost least.
        while devices <= self.widest and (most := max(rows)):
            enough = max(2, -(-batch // most))
            if enough <= devices:
                return min(single, self._enough(rows))
            devices = enough
            shared = groups.least_all_reduce_s(first, stop, devices)
            rows = [
                groups.most_within(first, stop, kind, room, shared) for kind in groups.kinds
            ]
        return single

    def _enough(self, rows: Sequence[int]) -> float:
        """Least price of devices that do the batch, each kind with its rows per device."""
        every = sorted(  # by price of a row: the cheapest kinds first
            (p / r, p, r, n)
            for p, r, n in zip(self.of, rows, self.numbers, strict=True)
            if r
        )
        least = inf

        def take(kind: int, left: int, paid: float) -> None:
            nonlocal least
            if left <= 0:  # the batch is done
                least = min(least, paid)
            elif kind < len(every) and paid + left * every[kind][0] < least:
                _, price, rows_each, most = every[kind]
                for number in range(min(most, -(-left // rows_each)), -1, -1):
                    take(kind + 1, left - number * rows_each, paid + number * price)

        take(0, self.costs.batch, 0.0)
        return least
