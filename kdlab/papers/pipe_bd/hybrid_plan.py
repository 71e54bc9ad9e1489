"""AHD, automatic hybrid distribution: the plan with the shortest step (section IV-C).

A plan cuts the blocks, in their order, into stages and gives each some of the devices; each stage
shares its rows by itself. Equal devices are interchangeable, so a stage is blocks [first, stop) and
a number of devices of each kind. The best plan of the blocks from `first` on for the devices that
are left leaves one of these idle or begins with a stage, and its rest is the best plan for fewer
blocks and devices:

    best(first, left) = min over idle devices of best(first, left - idle), and (stop, taken) of
        max(seconds(first, stop, taken), relay + best(stop, left - taken))

where `relay` is 0 with DPU (Fig. 3c), and with a barrier (Fig. 3b) the time until the next stage
has its input. The paper searches all plans; this finds one that is as good without trying all: it
searches below a limit that rises from a lower bound of all plans (device_prices.py), and the first
plan that it finds is the best. With too many kinds and devices for that, the plan comes with a
bound: with DPU it is searched by prices (priced_search.py); with a barrier, or where that gives up,
the kinds are ordered and stages take neighbours (its bound: barrier_bound.py).
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate, islice, product
from math import comb, floor, inf, log10, nextafter, prod
from operator import sub

from kdlab.papers.pipe_bd.barrier_bound import NEAR, barrier_bound_s
from kdlab.papers.pipe_bd.block_cost import DeviceKind, StageCosts
from kdlab.papers.pipe_bd.device_prices import DevicePrices
from kdlab.papers.pipe_bd.group_rows import Counts, Groups
from kdlab.papers.pipe_bd.placement import placed, stage_of
from kdlab.papers.pipe_bd.priced_search import PricedSearch, Stages
from kdlab.papers.pipe_bd.stages import Plan
from kdlab.papers.shares import shared_rows

# IV-C: exhaustive search, "both B and N at around ten". These bound it for more, and for kinds.
_MOST_STATES = 20_000  # combinations of numbers of devices left, by kind
_MOST_TURNS = 300_000  # of the search through all plans: about half a second
_NEARLY, _FAR = 1 / 32, 1e3  # relative excess over the lower bound, first and last limit
_PRICED_LIMITS, _PRICED_GROWTH = 8, 1.5  # up to half as long again as the lower bound
_ALIKE = 1 + 1e-12  # times that differ by less count as equal


@dataclass(frozen=True, slots=True)
class PlanFound:
    plan: Plan | None  # None: no plan fits into the devices' memory
    step_s: float
    bound_s: float  # no plan is faster; equals step_s where the plan is the best
    looked_at: int  # stages tried


class _TooMany(Exception):
    """The search tries too many stages."""


class _Row:
    """The best plans of the blocks from each one on, for the devices left."""

    __slots__ = ("picked", "seconds", "soonest")

    def __init__(self, blocks: int, none: Counts, end: float) -> None:
        self.seconds = [inf] * blocks + [end]
        # First block of the next stage, devices left for it, and devices of this one; () is idle
        self.picked: list[tuple[int, Counts, Counts]] = [(0, none, ())] * blocks
        self.soonest: list[float] = []

    def close(self) -> None:
        """Fill `soonest`: the negative running minimum of the times, in ascending order."""
        self.soonest = [-least for least in accumulate(self.seconds, min)]


# States of devices left, from none to all; and for a state and the highest price of a stage the
# pairs of devices that the next stage leaves and takes
_Way = tuple[Sequence[Counts], Callable[[Counts, float], Iterable[tuple[Counts, Counts]]]]


def count(blocks: int, devices: int) -> int:
    """Number of plans that use all of N equal devices for B blocks: C(B + N - 2, N - 1)."""
    # Derived: the sum over k stages of C(N - 1, k - 1) C(B - 1, k - 1). IV-C prints C(B - 1, N - 1)
    # for one device per stage, and no number for AHD; the authors' code has 56 for B = 6, N = 4.
    return comb(blocks + devices - 2, devices - 1)


def best_plan(
    costs: StageCosts, *, decoupled: bool = True, widest: int | None = None
) -> PlanFound:
    """Find the plan with the shortest step (line 4 of Algorithm 1).

    A device is left idle only where no plan that uses it is as fast.

    Args:
        costs: of the blocks on the devices.
        decoupled: DPU; else all devices wait for each other before they update.
        widest: devices of a stage at most; None is any number. 1 is TR.
    """

    def search(kinds: Sequence[DeviceKind]) -> PlanFound:
        return _Search(costs, kinds, decoupled=decoupled, widest=widest).best()

    # Memory is not in the paper. First each device counts with the largest memory of its type, so
    # that memory makes no kinds: a plan that fits into the real memory is the best; else a bound.
    most: dict[str, float] = {}
    for kind, memory in costs.kinds:
        most[kind] = max(memory, most.get(kind, 0.0))
    roomy = search([DeviceKind(kind, most[kind]) for kind, _ in costs.kinds])
    if roomy.plan is None:
        return roomy
    if (fits := placed(roomy.plan, costs)) is not None:  # as it is, or with devices swapped
        return replace(roomy, plan=fits)
    kinds = costs.kinds
    if prod(kinds.count(kind) + 1 for kind in set(kinds)) > _MOST_STATES:
        # Fewer kinds: memory that differs by little counts as the same.
        kinds = [DeviceKind(kind, _floored(memory)) for kind, memory in kinds]
    tight = search(kinds)
    exact = kinds is costs.kinds and tight.step_s <= tight.bound_s
    bound = tight.step_s if exact else min(roomy.bound_s, tight.step_s)
    return replace(tight, bound_s=bound, looked_at=roomy.looked_at + tight.looked_at)


def relaying(costs: StageCosts, *, decoupled: bool = True) -> PlanFound:
    """TR (IV-A): the best plan with one device for each stage."""
    return best_plan(costs, decoupled=decoupled, widest=1)


def internal_relaying(costs: StageCosts, *, decoupled: bool = True) -> Plan:
    """IR (VII-A): every device trains every block on its rows."""
    search = _Search(costs, costs.kinds, decoupled=decoupled, widest=None)
    return search.plan([(0, costs.blocks, search.numbers, 0.0)])


class _Search:
    """Search for devices of these kinds, whose memory may differ from the profile's."""

    def __init__(
        self,
        costs: StageCosts,
        device_kinds: Sequence[DeviceKind],
        *,
        decoupled: bool,
        widest: int | None,
    ) -> None:
        self.costs, self.device_kinds, self.decoupled = costs, device_kinds, decoupled
        self.widest = widest or costs.devices
        self.kinds: list[DeviceKind] = list(dict.fromkeys(device_kinds))
        self.numbers = tuple(device_kinds.count(kind) for kind in self.kinds)
        self.groups = Groups(costs, self.kinds, decoupled=decoupled)
        self.looked_at = 0
        self.prices = DevicePrices(self.groups, self.numbers, self.widest)
        self._turns = 0.0  # left until `_TooMany`

    def best(self) -> PlanFound:
        """Find the best plan, or the best of some plans where these are too many."""
        result, bound = self._first(self.prices.bound_s())
        if result is not None:
            return replace(result, bound_s=result.step_s)
        if self.decoupled:
            result, bound = self._priced(bound)
        by_price = sorted(range(len(self.kinds)), key=self.prices.of.__getitem__)
        for limit in _limits(bound, 1.0) if result is None else ():
            # The best plan with stages of 1, 2, 4 ... devices is a limit for all others.
            nearest, steps = limit, []
            for order in (by_price, by_price[::-1]):
                coarse = self._below(nearest, self._in_order(order, coarse=True))
                steps.append((coarse.step_s, order))
                nearest = min(nearest, coarse.step_s * _ALIKE)
            for _, order in sorted(steps):
                nearer = self._best_of(nearest, self._in_order(order))
                if nearer.plan is None:
                    continue
                result, nearest = nearer, nearer.step_s
                if not self.decoupled:
                    bound = max(bound, barrier_bound_s(self.prices, nearest))
                if nearest <= NEAR * bound:
                    break
            if result is not None:
                break
        result = result or PlanFound(None, inf, inf, 0)
        return replace(result, bound_s=bound, looked_at=self.looked_at)

    def _first(self, bound: float) -> tuple[PlanFound | None, float]:
        """Find the best plan below the first limit that has one.

        Returns:
            The plan, or None after too many turns; and a lower bound of all plans.
        """
        try:
            way = self._every_way()
            # Devices of one kind take few turns, so these are not counted.
            self._turns = _MOST_TURNS if len(self.kinds) > 1 else inf
            for limit in _limits(bound):
                result = self._best_of(limit, way)
                if result.plan is not None or limit == inf:
                    return result, bound
                bound = limit
        except _TooMany:
            self._turns = inf
        return None, bound

    def _priced(self, bound: float) -> tuple[PlanFound | None, float]:
        """Find a plan near the lower bound among too many to compare all.

        Returns:
            The plan, or None where the search gives up; and a lower bound of all plans.
        """
        search = PricedSearch(self.prices)
        for limit in islice(_limits(bound, growth=_PRICED_GROWTH), _PRICED_LIMITS):
            stages, complete = search.below(limit)
            self.looked_at += search.tried
            if stages is not None:
                every = [(first, stop, g, 0.0) for first, stop, g in self._filled(stages)]
                step_s = max(self.groups.seconds(*stage, inf) for stage in every)
                return PlanFound(self.plan(every), step_s, bound, self.looked_at), bound
            bound = limit if complete else bound
        return None, bound

    def _filled(self, stages: Stages) -> Stages:
        """Add devices that are left to stages that are not slower with them."""

        def seconds(stage: tuple[int, int, Counts]) -> float:
            return self.groups.seconds(*stage, 0.0, inf)

        step_s = max(map(seconds, stages)) * _ALIKE
        used = map(sum, zip(*(group for _, _, group in stages), strict=True))
        left = list(map(sub, self.numbers, used))
        for kind, place in product(range(len(left)), range(len(stages))):
            while left[kind]:
                first, stop, group = stages[place]
                more = tuple(n + (k == kind) for k, n in enumerate(group))
                if sum(more) > self.widest or seconds((first, stop, more)) > step_s:
                    break
                stages[place] = first, stop, more
                left[kind] -= 1
        return stages

    def _best_of(self, limit: float, way: _Way) -> PlanFound:
        """Find the best plan below the limit; among equals one without idle devices."""
        result = self._below(limit, way)
        if result.plan is not None and len(result.plan.devices) < self.costs.devices:
            without_idle = self._below(result.step_s * _ALIKE, way, idle=False)
            result = replace(result, plan=without_idle.plan or result.plan)
        return replace(result, looked_at=self.looked_at)

    def _every_way(self) -> _Way:
        """Stages on any devices.

        Raises:
            _TooMany: too many devices of several kinds.
        """
        # With a barrier prices rule out few: each state with what it can take is a turn.
        turns = 0 if self.decoupled else prod((n + 1) * (n + 2) // 2 for n in self.numbers)
        if prod(n + 1 for n in self.numbers) > _MOST_STATES or turns > _MOST_TURNS:
            raise _TooMany
        states = list(product(*(range(n + 1) for n in self.numbers)))
        every = (taken for taken in states if 0 < sum(taken) <= self.widest)
        takes = sorted((self.prices.price(taken), taken) for taken in every)

        def stages(left: Counts, dearest: float) -> Iterator[tuple[Counts, Counts]]:
            some = islice(takes, bisect_right(takes, (dearest, self.numbers)))
            rests = ((tuple(map(sub, left, taken)), taken) for _, taken in some)
            return (one for one in rests if min(one[0]) >= 0)

        return states, stages

    def _in_order(self, order: Sequence[int], *, coarse: bool = False) -> _Way:
        """Stages on neighbours, with the devices in an order of their kinds."""
        left = [0] * len(order)
        states = [tuple(left)]
        for kind in order:
            for _ in range(self.numbers[kind]):
                left[kind] += 1
                states.append(tuple(left))
        widths = [w for w in range(1, self.widest + 1) if not coarse or w & (w - 1) == 0]
        return states, partial(self._neighbours, states, widths)

    def _neighbours(
        self, states: Sequence[Counts], widths: Sequence[int], left: Counts, dearest: float
    ) -> Iterator[tuple[Counts, Counts]]:
        devices = sum(left)
        for rest in (states[devices - own] for own in widths if own <= devices):
            taken = tuple(map(sub, left, rest))
            if self.prices.price(taken) > dearest:
                return
            yield rest, taken

    def _below(self, limit: float, way: _Way, *, idle: bool = True) -> PlanFound:
        """Find the best plan below the limit; with `idle` it may leave devices out.

        Raises:
            _TooMany: no turns are left.
        """
        (states, stages), blocks = way, self.costs.blocks
        none, every = states[0], states[-1]
        rows: dict[Counts, _Row] = {}
        for left in states:
            row = rows[left] = _Row(blocks, none, 0.0 if idle or left == none else inf)
            # With a barrier all wait for the relay before them (Fig. 3b).
            relay = self.groups.relay_until(sum(self.numbers) - sum(left))
            below = [limit - each for each in relay]
            firsts, dearest = self.prices.part(left, limit)
            for rest, taken in stages(left, dearest) if firsts else ():
                # One device idle; the paper's plans use all.
                if idle and sum(taken) == 1:
                    for first in firsts:
                        if rows[rest].seconds[first] < row.seconds[first]:
                            row.seconds[first] = rows[rest].seconds[first]
                            row.picked[first] = first, rest, ()
                self._begin(row, rest, rows[rest], taken, firsts, below)
            row.close()
        if rows[every].seconds[0] >= limit:
            return PlanFound(None, inf, inf, 0)
        stages_taken, first, left = list[tuple[int, int, Counts, float]](), 0, every
        while first < blocks:  # follow the picks from the first block on
            stop, rest, taken = rows[left].picked[first]
            if taken:
                stages_taken.append((first, stop, taken, rows[rest].seconds[stop]))
            first, left = stop, rest
        return PlanFound(self.plan(stages_taken), rows[every].seconds[0], 0.0, 0)

    def _begin(
        self,
        row: _Row,
        rest: Counts,
        behind: _Row,
        taken: Counts,
        firsts: range,
        limits: Sequence[float],
    ) -> None:
        """Put stages on the devices taken before the best plans of the rest, where better."""
        groups, later, tried = self.groups, behind.seconds, 0
        work, relay = groups.least_work(taken), groups.relay_until(sum(taken))
        for first in firsts:
            # A stage wins against idle devices at equal times.
            known = row.seconds[first]
            known = known if row.picked[first][2] else nextafter(known, inf)
            below = min(known, limits[first])
            # Only stages before a rest that is fast enough
            begin = max(first + 1, bisect_right(behind.soonest, -below))
            # From short stages on: once one takes too long, every longer one does, too.
            for stop in range(begin, self.costs.blocks + 1):
                if work[stop] - work[first] >= below:
                    break
                if relay[stop] - relay[first] + later[stop] >= below:
                    continue
                tried += 1
                stage = first, stop, taken, later[stop], below
                any_rest, this_rest = groups.rows_in_time(*stage)
                if any_rest < groups.least_rows:
                    break
                if this_rest < groups.least_rows:
                    continue
                # IV-C: the slowest device sets the throughput
                if (seconds := groups.seconds(*stage)) < below:
                    row.seconds[first] = below = seconds
                    row.picked[first] = stop, rest, taken
        self.looked_at += tried
        self._turns -= tried + 1 + len(firsts)
        if self._turns < 0:
            raise _TooMany

    def plan(self, stages: Iterable[tuple[int, int, Counts, float]]) -> Plan:
        """Make the plan, giving out the devices of each kind from the first on.

        Args:
            stages: first block, the block before which they stop, devices of each kind, and
                seconds of all later stages.
        """
        numbered = list(enumerate(self.device_kinds))
        free = [iter([d for d, k in numbered if k == kind]) for kind in self.kinds]
        plan_stages = []
        for first, stop, counts, behind in stages:
            _, shares = self.groups.shared(first, stop, counts, behind)
            devices = [
                d for own, n in zip(free, counts, strict=True) for d in islice(own, n)
            ]
            every = zip(counts, shares, strict=True) if shares else ()
            rows = [r for n, own in every if n for r in shared_rows(own, [1] * n)]
            # Evenly where they do not fit: the check of the memory then reports it with numbers.
            rows = rows or list(shared_rows(self.costs.batch, [1] * len(devices)))
            plan_stages.append(stage_of(first, stop, zip(devices, rows, strict=True)))
        return Plan(self.costs.batch, tuple(plan_stages), self.decoupled, self.costs.lead)


def _limits(least: float, over: float = _NEARLY, growth: float = 2.0) -> Iterator[float]:
    """Yield rising limits above the lower bound, at last infinity.

    The nearer a limit is to the bound, the fewer stages can be part of a plan below it.
    """
    while over < _FAR:
        yield least * (1 + over)
        over *= growth
    yield inf


def _floored(memory: float) -> float:
    """Round down to two digits, so that devices with nearly the same memory are of one kind."""
    if memory in (0.0, inf):
        return memory
    digit = 10.0 ** (floor(log10(memory)) - 1)
    return memory // digit * digit
