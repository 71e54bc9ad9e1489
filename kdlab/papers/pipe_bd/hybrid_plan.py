"""AHD, automatic hybrid distribution: the plan with the shortest step (section IV-C).

A plan cuts the blocks, in their order, into stages, and gives each some of the devices; rows
are shared out in each stage for itself. Of devices that are alike only the number counts, so a
stage is blocks [first, stop) and how many devices of each kind it has. The best way to put the
blocks from `first` on, on the devices that are left, leaves one of these idle or begins with some
stage, and what stands behind it is the best way for fewer of both:

    best(first, left) = min over idle devices of best(first, left - idle), and (stop, taken) of
        max(seconds(first, stop, taken), relay + best(stop, left - taken))

where `relay` is 0 with DPU (Fig. 3c), and with a barrier (Fig. 3b) the time until the next stage
has its input. The paper searches all plans; this finds one that is as good without looking at
all: it looks for plans below a limit, from one on that no plan can be below (device_prices.py),
and the first that it finds are the best. Where kinds and devices are so many that this would take
long, the kinds are put in an order and stages take neighbours, and the plan comes with a bound.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate, islice, product
from math import comb, floor, inf, log10, nextafter, prod
from operator import sub

from kdlab.papers.pipe_bd.block_cost import DeviceKind, StageCosts
from kdlab.papers.pipe_bd.device_prices import DevicePrices
from kdlab.papers.pipe_bd.group_rows import Counts, Groups
from kdlab.papers.pipe_bd.placement import placed, stage_of
from kdlab.papers.pipe_bd.stages import Plan
from kdlab.papers.shares import shared_rows

_MOST_STATES = 20_000  # numbers of devices of each kind that can be left
_MOST_TURNS = 300_000  # of the search through all plans: about half a second's worth
# Seconds over those that no plan can be below: where the search begins, and what is too much
_NEARLY, _FAR = 1 / 32, 1e3
_ALIKE = 1 + 1e-12  # seconds that differ by less are as good


@dataclass(frozen=True, slots=True)
class PlanFound:
    plan: Plan | None  # None: nothing fits into the devices' memory
    step_s: float
    bound_s: float  # no plan is faster; the same as step_s where it is the best
    looked_at: int  # stages, for the record


class _TooMany(Exception):
    """More stages than are looked at."""


class _Row:
    """The best plans of the blocks from each one on, on some devices that are left."""

    __slots__ = ("picked", "seconds", "soonest")

    def __init__(self, blocks: int, none: Counts, end: float) -> None:
        self.seconds = [inf] * blocks + [end]
        # Where the next stage begins, what is left for it, and what this one took; or nobody
        self.picked: list[tuple[int, Counts, Counts]] = [(0, none, ())] * blocks
        self.soonest: list[float] = []

    def close(self) -> None:
        """Before each stage: the least time behind it or an earlier one, with its sign turned."""
        self.soonest = [-least for least in accumulate(self.seconds, min)]


# What can be left, from nothing to all, and of such a state and the highest price of a stage what
# the next stage may leave and take
_Way = tuple[Sequence[Counts], Callable[[Counts, float], Iterable[tuple[Counts, Counts]]]]


def count(blocks: int, devices: int) -> int:
    """Plans that use all devices, where these are alike: C(B + N - 2, N - 1)."""
    return comb(blocks + devices - 2, devices - 1)


def best_plan(
    costs: StageCosts, *, decoupled: bool = True, widest: int | None = None
) -> PlanFound:
    """The plan with the shortest step, of stages of so many devices at most.

    A device is left idle only where no plan that uses it is as fast.

    Args:
        costs: of the blocks on the devices.
        decoupled: DPU; else all devices wait for each other before they update.
        widest: devices of a stage at most; None is any number. 1 is TR.
    """

    def found(kinds: Sequence[DeviceKind]) -> PlanFound:
        return _Search(costs, kinds, decoupled=decoupled, widest=widest).best()

    # As if each device had the memory of the largest of its type: a plan that fits into what
    # they have is the best, and memory makes no kinds. One that does not is a bound.
    most: dict[str, float] = {}
    for kind, memory in costs.kinds:
        most[kind] = max(memory, most.get(kind, 0.0))
    roomy = found([DeviceKind(kind, most[kind]) for kind, _ in costs.kinds])
    if roomy.plan is None:
        return roomy
    if (fits := placed(roomy.plan, costs)) is not None:
        return replace(roomy, plan=fits)
    kinds = costs.kinds
    if prod(kinds.count(kind) + 1 for kind in set(kinds)) > _MOST_STATES:
        kinds = [DeviceKind(kind, _floored(memory)) for kind, memory in kinds]
    tight = found(kinds)
    exact = kinds is costs.kinds and tight.step_s <= tight.bound_s
    bound = tight.step_s if exact else min(roomy.bound_s, tight.step_s)
    return replace(tight, bound_s=bound, looked_at=roomy.looked_at + tight.looked_at)


def relaying(costs: StageCosts, *, decoupled: bool = True) -> PlanFound:
    """TR: one device per stage, balanced as well as its cuts allow."""
    return best_plan(costs, decoupled=decoupled, widest=1)


def internal_relaying(costs: StageCosts, *, decoupled: bool = True) -> Plan:
    """IR (section VII-A): every device trains every block, on its rows."""
    search = _Search(costs, costs.kinds, decoupled=decoupled, widest=None)
    return search.plan([(0, costs.blocks, search.numbers, 0.0)])


class _Search:
    """Search for devices of these kinds, whatever the profile says of their memory."""

    def __init__(
        self,
        costs: StageCosts,
        own: Sequence[DeviceKind],
        *,
        decoupled: bool,
        widest: int | None,
    ) -> None:
        self.costs, self.own, self.decoupled = costs, own, decoupled
        self.widest = widest or costs.devices
        self.kinds: list[DeviceKind] = list(dict.fromkeys(own))
        self.numbers = tuple(own.count(kind) for kind in self.kinds)
        self.groups = Groups(costs, self.kinds, decoupled=decoupled)
        self.looked_at = 0
        self.prices = DevicePrices(self.groups, self.numbers, self.widest)
        self._turns = 0.0  # that are left

    def best(self) -> PlanFound:
        """The best plan, or one of fewer plans that are looked at where these are too many."""
        found, bound = self._first(self.prices.bound_s(), mixed=True)
        if found is not None:
            return replace(found, bound_s=found.step_s)
        # With a barrier stages are few, and have devices of several kinds.
        if self.decoupled:
            found, _ = self._first(bound, mixed=False)
        by_price = sorted(range(len(self.kinds)), key=self.prices.of.__getitem__)
        none = found is None or found.plan is None
        for limit in _limits(bound, 1.0) if none else ():
            # What stages of 1, 2, 4 ... devices come to limits all others.
            steps = [
                (self._below(limit, self._in_order(order, coarse=True)).step_s, order)
                for order in (by_price, by_price[::-1])
            ]
            nearest = min(limit, min(steps)[0] * _ALIKE)
            ways = [self._in_order(order) for _, order in sorted(steps)]
            found = self._found(nearest, ways)
            if found.plan is not None:
                break
        assert found is not None
        return replace(found, bound_s=bound)

    def _first(self, bound: float, *, mixed: bool) -> tuple[PlanFound | None, float]:
        """The best plan below the first limit that there is one for.

        Returns:
            It, or None where that takes too many turns; and what no such plan is below.
        """
        try:
            way = self._every_way(mixed=mixed)
            # Of devices of one kind whatever is looked at is soon looked at.
            turns = _MOST_TURNS if mixed else 3 * _MOST_TURNS
            self._turns = turns if len(self.kinds) > 1 else inf
            for limit in _limits(bound):
                found = self._found(limit, [way])
                if found.plan is not None or limit == inf:
                    return found, bound
                bound = limit
        except _TooMany:
            self._turns = inf
        return None, bound

    def _found(self, limit: float, ways: Sequence[_Way]) -> PlanFound:
        """The best plan below the limit; of those that are as good one that leaves nobody idle."""
        best = PlanFound(None, inf, inf, 0)
        for way in ways:
            found = self._below(min(limit, best.step_s), way)
            if found.plan is not None and len(found.plan.devices) < self.costs.devices:
                every = self._below(found.step_s * _ALIKE, way, idle=False)
                found = replace(found, plan=every.plan or found.plan)
            best = min(best, found, key=lambda one: one.step_s)
        return replace(best, looked_at=self.looked_at)

    def _every_way(self, *, mixed: bool) -> _Way:
        """Whatever devices a stage has, or of one kind where they are not mixed.

        Raises:
            _TooMany: devices of several kinds are so many that it would take long.
        """
        if prod(n + 1 for n in self.numbers) > _MOST_STATES:
            raise _TooMany
        states = list(product(*(range(n + 1) for n in self.numbers)))
        every = (
            t for t in states if 0 < sum(t) <= self.widest and (mixed or max(t) == sum(t))
        )
        takes = sorted((self.prices.price(taken), taken) for taken in every)

        def stages(left: Counts, dearest: float) -> Iterator[tuple[Counts, Counts]]:
            some = islice(takes, bisect_right(takes, (dearest, self.numbers)))
            rests = ((tuple(map(sub, left, taken)), taken) for _, taken in some)
            return (one for one in rests if min(one[0]) >= 0)

        return states, stages

    def _in_order(self, order: Sequence[int], *, coarse: bool = False) -> _Way:
        """Stages of neighbours, where devices stand in an order of their kinds."""
        left = [0] * len(order)
        states = [tuple(left)]
        for kind in order:
            for _ in range(self.numbers[kind]):
                left[kind] += 1
                states.append(tuple(left))
        every = range(1, self.widest + 1)
        widths = [w for w in every if not coarse or w & (w - 1) == 0]
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
        """The best plan below the limit; with `idle` devices may be left out.

        Raises:
            _TooMany: it takes more turns than are left.
        """
        (states, stages), blocks = way, self.costs.blocks
        none, every = states[0], states[-1]
        rows: dict[Counts, _Row] = {}
        for left in states:
            row = rows[left] = _Row(blocks, none, 0.0 if idle or left == none else inf)
            # A barrier makes all wait for the relay that is before them
            relay = self.groups.relay_until(sum(self.numbers) - sum(left))
            below = [limit - each for each in relay]
            firsts, dearest = self.prices.part(left, limit)
            for rest, taken in stages(left, dearest) if firsts else ():
                if idle and sum(taken) == 1:
                    for first in firsts:
                        if rows[rest].seconds[first] < row.seconds[first]:
                            row.seconds[first] = rows[rest].seconds[first]
                            row.picked[first] = first, rest, ()
                self._begin(row, rest, rows[rest], taken, firsts, below)
            row.close()
        if rows[every].seconds[0] >= limit:
            return PlanFound(None, inf, inf, 0)
        made, first, left = list[tuple[int, int, Counts, float]](), 0, every
        while first < blocks:
            stop, rest, taken = rows[left].picked[first]
            if taken:
                made.append((first, stop, taken, rows[rest].seconds[stop]))
            first, left = stop, rest
        return PlanFound(self.plan(made), rows[every].seconds[0], 0.0, 0)

    def _begin(
        self,
        row: _Row,
        rest: Counts,
        behind: _Row,
        taken: Counts,
        firsts: range,
        limits: Sequence[float],
    ) -> None:
        """Stages on what is taken, before the best plans of what rests: where they are better."""
        work, relay = self.groups.least_work(taken), self.groups.relay_until(sum(taken))
        for first in firsts:
            # Rather than to leave devices idle for the same
            known = row.seconds[first]
            below = min(
                known if row.picked[first][2] else nextafter(known, inf), limits[first]
            )
            begin = max(first + 1, bisect_right(behind.soonest, -below))
            # Stages from the short ones on: once computing alone takes longer than
            # the best so far, every longer one does too.
            for stop in range(begin, self.costs.blocks + 1):
                if work[stop] - work[first] >= below:
                    break
                if relay[stop] - relay[first] + behind.seconds[stop] >= below:
                    continue
                self.looked_at += 1
                self._turns -= 1
                # IV-C: a step is as long as its longest stage
                seconds = self.groups.seconds(
                    first, stop, taken, behind.seconds[stop], below
                )
                if seconds < below:
                    row.seconds[first] = below = seconds
                    row.picked[first] = stop, rest, taken
        self._turns -= 1 + len(firsts)
        if self._turns < 0:
            raise _TooMany

    def plan(self, stages: Iterable[tuple[int, int, Counts, float]]) -> Plan:
        """With the devices of each kind given out from the first on.

        Args:
            stages: their first block, the one they stop before, their devices of each kind, and
                the time of all that is behind them.
        """
        free = [
            iter([d for d, k in enumerate(self.own) if k == kind]) for kind in self.kinds
        ]
        made = []
        for first, stop, counts, behind in stages:
            _, shares = self.groups.shared(first, stop, counts, behind)
            devices = [
                d for own, n in zip(free, counts, strict=True) for d in islice(own, n)
            ]
            every = zip(counts, shares, strict=True) if shares else ()
            rows = [r for n, own in every if n for r in shared_rows(own, [1] * n)]
            # Where they do not fit, whoever checks the memory says so with numbers.
            rows = rows or list(shared_rows(self.costs.batch, [1] * len(devices)))
            made.append(stage_of(first, stop, zip(devices, rows, strict=True)))
        return Plan(self.costs.batch, tuple(made), self.decoupled, self.costs.lead)


def _limits(least: float, over: float = _NEARLY) -> Iterator[float]:
    """Seconds a little longer than these, longer, and at last any.

    The nearer a limit is to what no plan can be below, the fewer stages can be part of one.
    """
    while over < _FAR:
        yield least * (1 + over)
        over *= 2
    yield inf


def _floored(memory: float) -> float:
    """To two digits, downwards: devices whose memory differs by next to nothing are alike."""
    if memory in (0.0, inf):
        return memory
    digit = 10.0 ** (floor(log10(memory)) - 1)
    return memory // digit * digit
