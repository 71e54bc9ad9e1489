"""AHD, automatic hybrid distribution: the plan with the shortest step (section IV-C).

A plan cuts the blocks, in their order, into stages, and gives each some of the devices; rows
are shared out in each stage for itself. Of devices that are alike only the number counts, so a
stage is blocks [first, stop) and how many devices of each kind it has. The best way to put the
blocks from `first` on, on the devices that are left, begins with some stage, and what stands
behind it is the best way for fewer of both:

    best(first, left) = min over (stop, taken) of
        max(seconds(first, stop, taken), relay + best(stop, left - taken))

where `relay` is 0 with DPU, and with a barrier the time until the next stage has its input.
The paper searches all plans; this finds one that is as good without looking at all. Where kinds
and devices are so many that it would take long, the kinds are put in an order, stages take
neighbours, and what is found comes with a bound that no plan can be below.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from math import comb, inf, nextafter, prod
from operator import sub
from typing import TypeVar

from kdlab.papers.pipe_bd.block_cost import Kind, StageCosts, sums
from kdlab.papers.pipe_bd.group_rows import Groups, least
from kdlab.papers.pipe_bd.stages import Plan, Stage

_MOST_LOOKS = 300_000  # stages that are looked at: about a second's worth
_MOST_GROUPS = 1_000  # of three kinds and more

Counts = tuple[int, ...]  # devices of each kind
_State = TypeVar("_State", int, Counts)  # devices that are left


@dataclass(frozen=True, slots=True)
class PlanFound:
    plan: Plan | None  # None: nothing fits into the devices' memory
    step_s: float
    bound_s: float  # no plan is faster; the same as step_s where it is the best
    looked_at: int  # stages, for the record


_NOTHING = PlanFound(None, inf, inf, 0)


def count(blocks: int, devices: int) -> int:
    """Plans that use all devices, where these are alike: C(B + N - 2, N - 1)."""
    return comb(blocks + devices - 2, devices - 1)


def best_plan(
    costs: StageCosts, *, decoupled: bool = True, widest: int | None = None
) -> PlanFound:
    """The plan of all devices with the shortest step, of stages of so many devices at most.

    Args:
        costs: of the blocks on the devices.
        decoupled: DPU; else all devices wait for each other before they update.
        widest: devices of a stage at most; None is any number. 1 is TR.
    """
    search = _Search(costs, decoupled=decoupled, widest=widest or costs.devices)
    if len(search.kinds) == 1:
        return search.in_order([0] * costs.devices)
    if search.is_small:
        best = search.of_all()
        # With a barrier the rows of a stage are those that end it first: others might let the
        # next one begin earlier.
        bound = best.step_s if decoupled else _bound_s(costs, search.kinds)
        return PlanFound(best.plan, best.step_s, min(bound, best.step_s), search.looked_at)
    best = _NOTHING
    for order in search.orders():
        found = search.in_order(search.ordered(order), best.step_s)
        best = min(best, found, key=lambda one: one.step_s)
    bound = min(_bound_s(costs, search.kinds), best.step_s)
    return PlanFound(best.plan, best.step_s, bound, search.looked_at)


def relaying(costs: StageCosts, *, decoupled: bool = True) -> PlanFound:
    """TR: one device per stage, balanced as well as its cuts allow.

    With more devices than blocks there is no such plan.
    """
    return best_plan(costs, decoupled=decoupled, widest=1)


class _Search:
    def __init__(self, costs: StageCosts, *, decoupled: bool, widest: int) -> None:
        self.costs, self.decoupled, self.widest = costs, decoupled, widest
        self.kinds: list[Kind] = list(dict.fromkeys(costs.kinds))
        self.numbers = tuple(costs.kinds.count(kind) for kind in self.kinds)
        self.groups = Groups(costs, self.kinds, decoupled=decoupled)
        self.looked_at = 0
        self._works: dict[tuple[frozenset[str], int], list[float]] = {}

    @property
    def is_small(self) -> bool:
        """Few enough stages for `of_all`, and few groups where each takes milliseconds."""
        pairs = self.costs.blocks * (self.costs.blocks + 1) // 2
        looks = pairs * prod((n + 1) * (n + 2) // 2 for n in self.numbers)
        groups = pairs * prod(n + 1 for n in self.numbers) if len(self.kinds) > 2 else 0
        return looks <= _MOST_LOOKS and groups <= _MOST_GROUPS

    def orders(self) -> list[list[int]]:
        """Orders of the kinds that are tried: both of two; else by speed and as they stand."""
        own = list(range(len(self.kinds)))
        rows = -(-self.costs.batch // self.costs.devices)
        by_speed = sorted(
            own,
            key=lambda k: self.costs.work_s(0, self.costs.blocks, self.kinds[k].type, rows),
        )
        tried = [own, own[::-1], by_speed, by_speed[::-1]]
        return [list(order) for order in dict.fromkeys(map(tuple, tried))]

    def ordered(self, order: Sequence[int]) -> list[int]:
        """Kinds of the devices when they stand in this order of their kinds."""
        return [kind for kind in order for _ in range(self.numbers[kind])]

    def of_all(self) -> PlanFound:
        """Whatever devices a stage has."""
        states = list(product(*(range(n + 1) for n in self.numbers)))
        takes = [t for t in states if 0 < sum(t) <= self.widest]

        def stages(left: Counts) -> Iterator[tuple[Counts, Counts]]:
            rests = ((tuple(map(sub, left, taken)), taken) for taken in takes)
            return (one for one in rests if min(one[0]) >= 0)

        return self._best(states, stages, inf, shorter=True)

    def in_order(self, order: Sequence[int], limit: float = inf) -> PlanFound:
        """Stages of neighbours among devices of these kinds in this order, below the limit.

        First of 1, 2, 4 ... devices: what that finds limits the second search, since no part
        of a better plan takes longer than the whole of a worse one.
        """
        devices = len(order)
        every = set(range(1, min(self.widest, devices) + 1))
        coarse = {1 << k for k in range(devices.bit_length())} & every | {max(every)}
        begun = self._in_order(order, limit, coarse)
        if coarse == every:
            return begun
        found = self._in_order(order, min(limit, nextafter(begun.step_s, inf)), every)
        return min(found, begun, key=lambda one: one.step_s)

    def _in_order(self, order: Sequence[int], limit: float, widths: set[int]) -> PlanFound:
        """The best plan below the limit, of stages of so many neighbours."""
        devices = len(order)

        def stages(start: int) -> Iterator[tuple[int, Counts]]:
            ends = (start + width for width in sorted(widths))
            return ((e, self._counts(order[start:e])) for e in ends if e <= devices)

        return self._best(range(devices, -1, -1), stages, limit)

    def _best(
        self,
        states: Sequence[_State],
        stages: Callable[[_State], Iterable[tuple[_State, Counts]]],
        limit: float,
        *,
        shorter: bool = False,
    ) -> PlanFound:
        """The best plan below the limit.

        Args:
            states: the devices that are left: first none, last all.
            stages: that may come next: what each leaves, and its devices of each kind.
            limit: seconds.
            shorter: of plans that are as good, the one whose first stage has fewer blocks.
        """
        blocks, none, every = self.costs.blocks, states[0], states[-1]
        # By the devices and the first block that are left: the time of the best plan.
        best: dict[_State, list[float]] = {}
        chosen: dict[_State, list[tuple[int, _State, Counts]]] = {}
        reached: dict[_State, list[int]] = {}  # blocks from which on there is a plan
        for left in states:
            row = best[left] = [limit] * blocks + [0.0 if left == none else limit]
            picked = chosen[left] = [(0, none, ())] * blocks
            for rest, counts in stages(left):
                if not reached[rest]:
                    continue
                behind, work = best[rest], self._least_work(counts)
                for first in range(blocks - 1, -1, -1):
                    below = nextafter(row[first], inf) if shorter else row[first]
                    # Stages from the short ones on: once computing alone takes longer than
                    # the best so far, every longer one does too.
                    for stop in reached[rest]:
                        if stop <= first or behind[stop] >= below:
                            continue
                        if work[stop] - work[first] >= below:
                            break
                        self.looked_at += 1
                        group = self.groups.of(first, stop, counts)
                        # IV-C: a step is as long as its longest stage
                        seconds = max(group.seconds, group.relay_s + behind[stop])
                        if seconds < row[first] or (
                            seconds < below and stop < picked[first][0]
                        ):
                            row[first], picked[first] = seconds, (stop, rest, counts)
                            below = nextafter(seconds, inf) if shorter else seconds
            reached[left] = [first for first in range(blocks + 1) if row[first] < limit]
        if best[every][0] >= limit:
            return PlanFound(None, inf, inf, self.looked_at)
        made, first, left = list[tuple[int, int, Counts]](), 0, every
        while first < blocks:
            stop, rest, counts = chosen[left][first]
            made.append((first, stop, counts))
            first, left = stop, rest
        return PlanFound(self._plan(made), best[every][0], best[every][0], self.looked_at)

    def _counts(self, kinds: Sequence[int]) -> Counts:
        return tuple(kinds.count(k) for k in range(len(self.kinds)))

    def _least_work(self, counts: Counts) -> list[float]:
        """What a group cannot be below, before each boundary: computing alone.

        Some device has at least as many rows as if all had as many, on each block's best type.
        """
        rows = -(-self.costs.batch // sum(counts))
        key = (
            frozenset(self.kinds[k].type for k, number in enumerate(counts) if number),
            rows,
        )
        if key not in self._works:
            each = [
                [self.costs.work_s(b, b + 1, kind, rows) for b in range(self.costs.blocks)]
                for kind in key[0]
            ]
            # A hair less: sums in another order end in other bits.
            self._works[key] = sums(
                [min(own) * (1 - 1e-12) for own in zip(*each, strict=True)]
            )
        return self._works[key]

    def _plan(self, stages: Sequence[tuple[int, int, Counts]]) -> Plan:
        """With the devices of each kind given out from the first on."""
        free = [
            iter([d for d, own in enumerate(self.costs.kinds) if own == kind])
            for kind in self.kinds
        ]
        made = []
        for first, stop, taken in stages:
            own = sorted(
                next(free[kind]) for kind, number in enumerate(taken) for _ in range(number)
            )
            group = self.groups.of(first, stop, taken)
            rows = group.rows_of([self.costs.kinds[d] for d in own], self.kinds)
            made.append(Stage(first, stop, tuple(own), rows, from_data=first == 0))
        costs = self.costs
        return Plan(costs.batch, tuple(made), self.decoupled, costs.lead)


def _bound_s(costs: StageCosts, kinds: Sequence[Kind]) -> float:
    """No step is shorter, whatever the plan: computing alone, shared without any loss.

    Of two types of devices blocks go in parts to the one that is better at them (a fractional
    knapsack, which is exact); of more each block counts on the type that is best at it.
    """
    types = list(dict.fromkeys(kind.type for kind in kinds))
    numbers = [list(costs.profile.devices).count(kind) for kind in types]
    # Device seconds of each block's whole batch, at the rows where that is cheapest
    needs = [[_cheapest_s(costs, kind, b) for b in range(costs.blocks)] for kind in types]
    if len(types) != 2:
        return sum(min(own[b] for own in needs) for b in range(costs.blocks)) / sum(numbers)
    by_gain = sorted(
        range(costs.blocks), key=lambda b: needs[0][b] / max(needs[1][b], 1e-12)
    )

    def enough(step: float) -> bool:
        room, rest = step * numbers[0], 0.0
        for block in by_gain:  # what the first type is best at, as far as it goes
            share = min(1.0, room / max(needs[0][block], 1e-12))
            room -= share * needs[0][block]
            rest += (1 - share) * needs[1][block]
        return rest <= step * numbers[1]

    return least(enough, sum(needs[0]) / numbers[0])[0]


def _cheapest_s(costs: StageCosts, kind: str, block: int) -> float:
    """Device seconds of a block's whole batch, in parts of the rows that suit this type best."""
    batch, found = costs.batch, inf
    for rows in sorted({*costs.profile.types[kind][block].teacher_s, batch, 1}):
        if rows <= batch:
            seconds = costs.work_s(block, block + 1, kind, rows)
            found = min(found, seconds * batch / rows)
    return found
