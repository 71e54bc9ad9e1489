"""The rows of a stage's devices, such that the slowest ends as early as possible.

Devices of one kind have equal numbers of rows, one more or less. More rows never take less time,
so the search is for the shortest time in which all kinds together do the batch (section IV-C:
"further splitting of each block along the batch dimension"). It is exact, since no time lies
between two numbers of rows. The paper's devices are of one kind, so it splits evenly.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import cache
from math import inf

from kdlab.papers.pipe_bd.block_cost import DeviceKind, StageCosts, sums

Counts = tuple[int, ...]  # devices of each kind
_Seconds = Callable[[int], float]  # of a device with so many rows


class Groups:
    """Stages on given numbers of devices of each kind, with the best rows for them."""

    def __init__(
        self, costs: StageCosts, kinds: Sequence[DeviceKind], *, decoupled: bool
    ) -> None:
        self.costs, self.kinds, self.decoupled = costs, kinds, decoupled
        self._turn = cache(self._turn_of)
        self._most = cache(costs.most_rows)
        self._all_reduce_s = cache(costs.all_reduce_s)
        self._alike = cache(self._alike_of)
        self._types = cache(
            lambda counts: frozenset(
                k.type for k, n in zip(kinds, counts, strict=True) if n
            )
        )
        self._least_s = cache(self._summed)
        self._every_type = frozenset(kind.type for kind in kinds)
        self.least_rows = costs.batch * (1 - 1e-6)  # fewer are certainly not the batch
        self._lines = [_lines(costs, kind.type) for kind in kinds]
        self._work = {k.type: work for k, (work, _) in zip(kinds, self._lines, strict=True)}

    def seconds(
        self, first: int, stop: int, counts: Counts, behind: float, below: float
    ) -> float:
        """Seconds from a stage's input to its end and that of all later stages.

        Args:
            first: its first block.
            stop: first block of the next stage.
            counts: its devices of each kind.
            behind: seconds of the later stages.
            below: limit; infinity is returned for as many seconds or more.
        """
        if (single_kind := self._alike(first, stop, counts)) is not None:
            stage_s, relay = single_kind
            # Fig. 3b: later stages begin once the relay reaches them (0 with DPU)
            return max(stage_s, relay + behind)
        if self.rows_in_time(first, stop, counts, behind, below)[1] < self.least_rows:
            return inf
        stage_s = self.shared(first, stop, counts, behind, below)[0]
        return max(stage_s, behind) if self.decoupled else stage_s

    def _turn_of(
        self, first: int, stop: int, kind: str, rows: int
    ) -> tuple[float, float, float]:
        # A plain tuple, which the garbage collector soon leaves alone: there are 100,000 of them.
        busy, beside, relay = self.costs.turn(
            first, stop, kind, rows, decoupled=self.decoupled
        )
        return busy, beside, relay

    def _alike_of(
        self, first: int, stop: int, counts: Counts
    ) -> tuple[float, float] | None:
        """Seconds of a stage of one kind of devices, and until the next begins; else None."""
        devices = sum(counts)
        if max(counts) < devices:
            return None
        kind, batch = self.kinds[counts.index(devices)], self.costs.batch
        rows = -(-batch // devices)  # the paper's even split; the largest share decides
        if devices > batch or rows > self._most(first, stop, kind.memory):
            return inf, inf
        busy, beside, relay = self._turn(first, stop, kind.type, rows)
        shared = self._all_reduce_s(first, stop, self._types(counts), devices)
        stage_s = max(busy + shared, beside)
        return stage_s, 0.0 if self.decoupled else relay

    def least_work(self, counts: Counts) -> list[float]:
        """Lower bound in seconds of a group's computing, summed before each boundary."""
        # Some device has at least an even share of the rows, on each block's best type at best.
        return self._least_s(self.costs.work_s, self._types(counts), sum(counts))

    def relay_until(self, used: int) -> list[float]:
        """Least seconds that a barrier makes each block wait behind this many devices.

        Fig. 3b: until the teacher's blocks before it are done, each shared by all of them.
        """
        if self.decoupled or not used:  # IV-B: DPU hides the teacher waiting time
            return [0.0] * (self.costs.blocks + 1)
        return self._least_s(self.costs.teacher_s, self._every_type, used)

    def _summed(
        self,
        seconds: Callable[[int, str, int], float],
        types: Collection[str],
        devices: int,
    ) -> list[float]:
        rows = -(-self.costs.batch // devices)
        each = (min(seconds(b, k, rows) for k in types) for b in range(self.costs.blocks))
        # A hair less: sums in another order differ in their last bits.
        return sums([s * (1 - 1e-9) for s in each])

    def rows_in_time(
        self, first: int, stop: int, counts: Counts, behind: float, below: float
    ) -> tuple[float, float]:
        """Upper bounds of the rows that a stage does in less than `below` seconds.

        Returns:
            Those whatever follows, and no stage of more blocks does more; and those with later
            stages of `behind` seconds, which are as many with DPU.
        """
        shared = self._all_reduce_s(first, stop, self._types(counts), sum(counts))
        # Not in the paper: lower bounds that are lines in rows rule out most stages quickly.
        rows = before = 0.0
        for (work, teacher), number in zip(self._lines, counts, strict=True):
            if number:
                each = work.rows(first, stop, below - shared)
                rows += number * each
                if not self.decoupled:
                    each = min(each, teacher.rows(first, stop, below - behind))
                before += number * each
        return rows, before

    def most_within(
        self, first: int, stop: int, kind: DeviceKind, room: float, shared: float
    ) -> int:
        """Most rows that a device of this kind does in `room` seconds, sharing included."""

        def seconds(rows: int) -> float:
            busy, beside, _ = self._turn(first, stop, kind.type, rows)
            return max(busy + shared, beside)

        # One more, since the line and its rows are rounded
        by_line = self._work[kind.type].rows(first, stop, room - shared)
        most = int(min(self._most(first, stop, kind.memory), max(0.0, by_line) + 1))
        step = 0  # down from there, since most profiles are nearly lines
        while step < most and seconds(most - step) > room:
            step = 2 * step + 1
        low = max(0, most - step)
        return low + bisect_right(range(low + 1, most - step // 2), room, key=seconds)

    def least_all_reduce_s(self, first: int, stop: int, devices: int) -> float:
        """Least seconds of line 14 among this many devices of any one type."""
        every = (frozenset([kind]) for kind in self._every_type)
        return min(self._all_reduce_s(first, stop, kind, devices) for kind in every)

    def shared(
        self, first: int, stop: int, counts: Counts, behind: float, below: float = inf
    ) -> tuple[float, tuple[int, ...]]:
        """Seconds of a stage, and the rows of all devices of each kind; empty where none fit.

        With a barrier the later of its own end and that of the later stages, which begin when they
        have their input.
        """
        there = [k for k, count in enumerate(counts) if count]
        numbers, batch = [counts[k] for k in there], self.costs.batch
        kinds = [self.kinds[k] for k in there]
        if sum(numbers) > batch:  # each device needs a row
            return inf, ()
        shared = self._all_reduce_s(first, stop, self._types(counts), sum(numbers))
        if self.decoupled:  # IV-B: it does not wait for later stages
            behind = -inf
        turn = self._turn

        def of(kind: str) -> _Seconds:
            def seconds(rows: int) -> float:
                busy, beside, relay = turn(first, stop, kind, rows)
                return max(busy + shared, beside, relay + behind)

            return seconds

        times = [of(kind.type) for kind in kinds]
        most = [self._most(first, stop, kind.memory) for kind in kinds]
        seconds_needed, each = least(numbers, times, most, batch, below)
        each_rows = iter(_exactly(numbers, each, batch)) if each else iter(())
        return seconds_needed, tuple(
            next(each_rows) if n else 0 for n in counts
        ) if each else ()


def least(
    numbers: Sequence[int],
    times: Sequence[_Seconds],
    most: Sequence[int],
    rows: int,
    below: float = inf,
) -> tuple[float, tuple[int, ...]]:
    """Shortest time in which devices of several kinds do the rows, one each at least.

    Args:
        numbers: devices of each kind.
        times: seconds of a device of each kind by its rows; more never take less.
        most: largest number of rows of a device of each kind.
        rows: of all devices.
        below: limit of the search.

    Returns:
        The time, and the most rows of a device of each kind in it; infinity and () where the time
        is not below the limit, or the devices cannot have so many rows.
    """

    def enough(each: Sequence[int]) -> bool:
        return min(each) > 0 and sum(map(int.__mul__, numbers, each)) >= rows

    def within(limit: float, bisect: Callable[..., int]) -> list[int]:
        """Rows of each kind in this time, between `low` and `high`."""
        every = zip(low, high, times, strict=True)
        return [a + bisect(range(a + 1, b + 1), limit, key=f) for a, b, f in every]

    low, high = [0] * len(numbers), [min(own, rows) for own in most]
    if not enough(high):  # memory, or fewer rows than devices
        return inf, ()
    if below < inf and not enough(high := within(below, bisect_left)):
        return inf, ()
    while True:  # `low` is too few and `high` is enough; each turn halves a gap
        kind = max(range(len(numbers)), key=lambda k: high[k] - low[k])
        middle = (low[kind] + high[kind] + 1) // 2
        limit = times[kind](middle)
        these, fewer = within(limit, bisect_right), within(limit, bisect_left)
        these[kind], fewer[kind] = middle, middle - 1
        if not enough(these):  # the time is too short
            low = these
        elif enough(fewer):  # a shorter time does
            high = fewer
        else:  # one row less of this kind is too few: the time is the shortest
            return limit, tuple(these)


def _exactly(numbers: Sequence[int], rows: Sequence[int], batch: int) -> list[int]:
    """Rows of each kind: the most that its devices may have, less the surplus over the batch."""
    too_many = sum(n * r for n, r in zip(numbers, rows, strict=True)) - batch
    exact = []
    for number, each in zip(numbers, rows, strict=True):
        fewer = min(too_many, number * (each - 1))
        too_many -= fewer
        exact.append(number * each - fewer)
    return exact


@dataclass(frozen=True, slots=True)
class _RowsLine:
    """Seconds that are never more than a device's, by rows; summed before each boundary."""

    base: list[float]
    slope: list[float]

    def rows(self, first: int, stop: int, seconds: float) -> float:
        """Upper bound of the rows that a device does of blocks [first, stop) in this time."""
        base, slope = self.base, self.slope
        return (seconds - (base[stop] - base[first])) / (slope[stop] - slope[first])


def _lines(costs: StageCosts, kind: str) -> tuple[_RowsLine, _RowsLine]:
    """Lines below the seconds of computing and of the teacher."""
    lines: list[list[float]] = [[], [], [], []]
    blocks = [costs.measured(block, kind) for block in range(costs.blocks)]
    # Never 0, so that it can be divided by
    least = 1e-6 * max(points[-1][1] for points in blocks) / costs.batch or 1e-12
    for points in blocks:
        rows, *every = zip(*points, strict=True)
        for k, times in enumerate(every):
            slope = max(least, (times[-1] - times[0]) / max(1, rows[-1] - rows[0]))
            lines[2 * k].append(
                min(s - slope * r for r, s in zip(rows, times, strict=True))
            )
            lines[2 * k + 1].append(slope)
    base, slope, own_base, own_slope = map(sums, lines)
    return _RowsLine(base, slope), _RowsLine(own_base, own_slope)
