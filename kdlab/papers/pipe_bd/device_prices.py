"""What no plan can be below: a price of each kind of device, and what stages cost at least.

Of every block some share of the rows is done on each type of device, in so many seconds of such a
device at least. All of them have no more than the step to give. So for any prices

    step >= sum over blocks of min over types(price * seconds) / sum over devices of price

and the best prices come as near to the shortest step as computing alone can say, shared without
any loss (they are the dual of that linear program). With these prices a stage that is to be done
in a step needs devices of some price at least, its all-reduce and its transfers counted. Where the
stages need more than all devices are worth, however the blocks are cut, no plan is as fast.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from math import exp, inf, sqrt

from kdlab.papers.pipe_bd.block_cost import StageCosts
from kdlab.papers.pipe_bd.group_rows import Counts, Groups

_TURNS = 100
_HALVINGS = 4  # between a step that is too short and one that may be long enough
_SHORT = 1e-12  # seconds
_LESS = 1 - 1e-9  # a hair: sums in another order end in other bits


@dataclass(frozen=True, slots=True)
class Needed:
    """What plans below some limit need at least, in the price of devices."""

    before: list[float]  # for the blocks before each boundary
    behind: list[float]
    last: list[int]  # by its first block, where a stage stops at the latest


class DevicePrices:
    """DevicePrices of the devices of each kind, for stages of these groups.

    Attributes:
        of: a device of each kind.
    """

    def __init__(self, groups: Groups, numbers: Counts, widest: int) -> None:
        self.groups, self.costs, self.numbers = groups, groups.costs, numbers
        self.widest = widest  # devices of a stage at most
        self.of, self._computing_s = self._best()
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
        low = high = max(self._computing_s, _SHORT)
        while not self._may_be(high):
            low, high = high, 1.5 * high
        for _ in range(_HALVINGS if low < high else 0):
            middle = sqrt(low * high)
            low, high = (low, middle) if self._may_be(middle) else (middle, high)
        return low * _LESS

    def _may_be(self, limit: float) -> bool:
        return self.needed(limit).behind[0] <= self.worth / _LESS

    def _needed(self, limit: float) -> Needed:
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
        return Needed(before, behind, last)

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

    def _best(self) -> tuple[list[float], float]:
        """The prices with the highest bound, and it."""
        groups = self.groups
        needs = [
            [_least_s(groups.costs, b, kind.type) for b in range(self.costs.blocks)]
            for kind in groups.kinds
        ]
        prices = best = [1 / max(1e-12, sum(own)) for own in needs]
        bound = 0.0
        for turn in range(_TURNS if len(needs) > 1 else 1):
            loads, total = [0.0] * len(needs), 0.0
            for own in zip(*needs, strict=True):
                kind = min(range(len(needs)), key=lambda k: prices[k] * own[k])
                loads[kind] += own[kind] / self.numbers[kind]
                total += prices[kind] * own[kind]
            paid = sum(p * n for p, n in zip(prices, self.numbers, strict=True))
            if total / paid > bound:
                bound, best = total / paid, prices
            # What is wanted more than others becomes dearer, by less in each turn.
            most = (max(loads) or 1.0) * (1 + turn / 4)
            prices = [p * exp(load / most) for p, load in zip(prices, loads, strict=True)]
        return best, bound * _LESS


def _least_s(costs: StageCosts, block: int, kind: str) -> float:
    """Device seconds of a block's whole batch, in parts of the rows that suit it best."""
    least = min(s * costs.batch / rows for rows, s, _ in costs.measured(block, kind))
    loads = 0.0 if block else (1 - costs.profile.load_overlap) * costs.profile.load_s
    return least + loads
