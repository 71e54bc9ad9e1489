"""Plans of many kinds of devices: depth first, each time the stage that costs least.

The search of hybrid_plan.py goes through all numbers of devices of each kind that can be left,
which are too many for four kinds of sixteen devices. This one visits only what prices allow
(device_prices.py): a stage is tried where the blocks before and behind it can still be paid for.
It answers whether there is a plan below a limit, with DPU, where stages do not depend on each
other (section IV-B).
"""

from bisect import bisect_left
from collections.abc import Iterator
from functools import cache
from heapq import heappop, heappush
from math import inf
from operator import add, le, mul

from kdlab.papers.pipe_bd.device_prices import LESS, DevicePrices
from kdlab.papers.pipe_bd.group_rows import Counts

_MOST_GROUPS = 20_000  # in the list of groups, from the cheapest on
_MOST_OF_A_STAGE = 100  # groups that are tried for one stage
_MOST_VISITS = 2_000  # of (boundary, devices used)

Stages = list[
    tuple[int, int, Counts]
]  # first block, the one before which it stops, devices


class PricedSearch:
    """Plans below limits, for devices with these prices.

    Attributes:
        tried: groups whose time was computed in the newest search.
    """

    def __init__(self, prices: DevicePrices) -> None:
        self._prices, self._groups = prices, prices.groups
        self._numbers, self._blocks = prices.numbers, prices.costs.blocks
        self._by_price, self._all_groups = self._cheapest_groups()
        self.tried = 0

    def below(self, limit_s: float) -> tuple[Stages | None, bool]:
        """Search a plan whose step is shorter than the limit.

        Returns:
            Its stages, or None; and whether None proves that there is no such plan.
        """
        self.tried = 0
        demand = self._prices.needed(limit_s)
        worth, blocks = self._prices.worth / LESS, self._blocks
        # IV-C searches all plans; where all blocks cost more than all devices there is none
        if demand.behind[0] > worth:
            return None, True
        complete = self._all_groups

        @cache
        def stages(first: int) -> list[tuple[float, float, int, Counts]]:
            """Price with all behind it, price, end and group; the cheapest last."""
            nonlocal complete
            options = []
            for stop in range(first + 1, blocks + 1):
                # Blocks before and behind cost this at least, however they are cut
                budget = worth - demand.before[first] - demand.behind[stop]
                groups = list(self._sufficient(first, stop, limit_s, budget))
                complete &= len(groups) < _MOST_OF_A_STAGE
                options += [(p + demand.behind[stop], p, stop, g) for p, g in groups]
            return sorted(options, reverse=True)

        visited: list[list[Counts]] = [[] for _ in range(blocks)]
        stack: list[tuple[int, Counts, float, Stages]] = [
            (0, (0,) * len(self._numbers), 0.0, [])
        ]
        visits = 0
        while stack:
            first, used, paid, plan = stack.pop()
            if first == blocks:  # stages for all blocks; devices left stay idle
                return plan, True
            # What can follow more devices can follow fewer
            if any(all(map(le, before, used)) for before in visited[first]):
                continue
            visited[first].append(used)
            visits += 1
            if visits > _MOST_VISITS:  # gives up, so None proves nothing
                return None, False
            for needed, price, stop, group in stages(first):
                total = tuple(map(add, used, group))
                if paid + needed <= worth and all(map(le, total, self._numbers)):
                    stack.append((stop, total, paid + price, [*plan, (first, stop, group)]))
        return None, complete

    def _sufficient(
        self, first: int, stop: int, limit_s: float, budget: float
    ) -> Iterator[tuple[float, Counts]]:
        """Prices and groups that do a stage in time, none of them with a device too many."""
        least = self._prices.stage(first, stop, limit_s) * LESS  # no group is cheaper
        if not least <= budget:
            return
        batch, kinds = self._prices.costs.batch, self._groups.kinds
        rows = [self._groups.most_within(first, stop, k, limit_s, 0.0) for k in kinds]
        smaller: list[Counts] = []
        begin = bisect_left(self._by_price, (least, ()))
        for price, group in self._by_price[begin:]:
            if price > budget or len(smaller) == _MOST_OF_A_STAGE:
                return
            # Without sharing, a device does the most rows; IV-C: rows are split over the group
            if sum(map(mul, group, rows)) < batch:
                continue
            # One device less already suffices
            if any(all(map(le, part, group)) for part in smaller):
                continue
            self.tried += 1
            if self._groups.seconds(first, stop, group, -inf, limit_s) < limit_s:
                smaller.append(group)
                yield price, group

    def _cheapest_groups(self) -> tuple[list[tuple[float, Counts]], bool]:
        """Groups of devices from the cheapest on, and whether these are all."""
        kinds, prices = range(len(self._numbers)), self._prices
        heap: list[tuple[float, Counts, int]] = []

        def push(group: Counts, last: int) -> None:
            """With one device more, of a kind from the last one on: so each group comes once."""
            for kind in kinds[last:]:
                more = tuple(n + (k == kind) for k, n in enumerate(group))
                if more[kind] <= self._numbers[kind] and sum(more) <= prices.widest:
                    heappush(heap, (prices.price(more), more, kind))

        push((0,) * len(kinds), 0)
        groups: list[tuple[float, Counts]] = []
        while heap and len(groups) < _MOST_GROUPS:
            price, group, last = heappop(heap)
            groups.append((price, group))
            push(group, last)
        return groups, not heap
