"""The rows of a stage's devices: so many for each that the slowest is done as early as can be.

Devices of one kind get as many rows as each other, one more or less. More rows never take less
time, so what is sought is the shortest time in which all kinds together do the whole batch
(section IV-C: "further splitting blocks along the batch dimension"). It is exact, since nothing
lies between two numbers of rows.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Sequence
from functools import cache, partial
from math import inf

from kdlab.papers.pipe_bd.block_cost import DeviceKind, StageCosts, sums

Counts = tuple[int, ...]  # devices of each kind
_Seconds = Callable[[int], float]  # of a device with so many rows


class Groups:
    """Stages on so many devices of each kind, with the rows that are best for them."""

    def __init__(
        self, costs: StageCosts, kinds: Sequence[DeviceKind], *, decoupled: bool
    ) -> None:
        self.costs, self.kinds, self.decoupled = costs, kinds, decoupled
        self._turn = cache(partial(costs.turn, decoupled=decoupled))
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
        self._lines = [_lines(costs, kind.type) for kind in kinds]

    def seconds(
        self, first: int, stop: int, counts: Counts, behind: float, below: float
    ) -> float:
        """Seconds from a stage's input to its end and to that of all behind it.

        Args:
            first: block that it begins with.
            stop: block that the next stage begins with.
            counts: its devices of each kind.
            behind: seconds of all that is behind it.
            below: infinite is returned where it takes as long.
        """
        if (alike := self._alike(first, stop, counts)) is not None:
            own, relay = alike
            return max(own, relay + behind)
        if below < inf and not self._may(first, stop, counts, behind, below):
            return inf
        own = self.shared(first, stop, counts, behind, below)[0]
        return max(own, behind) if self.decoupled else own

    def _alike_of(
        self, first: int, stop: int, counts: Counts
    ) -> tuple[float, float] | None:
        """Seconds of a stage of one kind and until the next begins; None of any other.

        Their rows are what they are, one more or less.
        """
        devices = sum(counts)
        if max(counts) < devices:
            return None
        kind, batch = self.kinds[counts.index(devices)], self.costs.batch
        rows = -(-batch // devices)
        if devices > batch or rows > self._most(first, stop, kind.memory):
            return inf, inf
        turn = self._turn(first, stop, kind.type, rows)
        shared = self._all_reduce_s(first, stop, self._types(counts), devices)
        own = max(turn.busy + shared, turn.beside)
        return own, 0.0 if self.decoupled else turn.relay

    def least_work(self, counts: Counts) -> list[float]:
        """What a group cannot be below, before each boundary: computing alone.

        Some device has at least as many rows as if all had as many, on each block's best type.
        """
        return self._least_s(self.costs.work_s, self._types(counts), sum(counts))

    def relay_until(self, used: int) -> list[float]:
        """What a barrier makes each block wait at least where so many devices are before it.

        Fig. 3b: until the teacher's blocks before it are done, each shared by all of them.
        """
        if self.decoupled or not used:
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
        # A hair less: sums in another order end in other bits.
        return sums([s * (1 - 1e-9) for s in each])

    def _may(
        self, first: int, stop: int, counts: Counts, behind: float, below: float
    ) -> bool:
        """Whether devices of several kinds could do all rows in time, were that a line of rows."""
        shared = self._all_reduce_s(first, stop, self._types(counts), sum(counts))
        rows, later = 0.0, below - (-inf if self.decoupled else behind)
        for line, number in zip(self._lines, counts, strict=True):
            if number:
                base, slope, own_base, own_slope = (
                    each[stop] - each[first] for each in line
                )
                own, relayed = (
                    (below - shared - base) / slope,
                    (later - own_base) / own_slope,
                )
                rows += number * min(own, relayed)
        return rows >= self.costs.batch * (1 - 1e-9)

    def most_within(
        self, first: int, stop: int, kind: DeviceKind, room: float, shared: float
    ) -> int:
        """The most rows that a device of this kind does in so many seconds with its sharing."""

        def seconds(rows: int) -> float:
            busy, beside, _ = self._turn(first, stop, kind.type, rows)
            return max(busy + shared, beside)

        most = self._most(first, stop, kind.memory)
        return bisect_right(range(1, most + 1), room, key=seconds)

    def least_all_reduce_s(self, first: int, stop: int, devices: int) -> float:
        """Seconds of sharing among so many devices, whatever their kinds."""
        every = (frozenset([kind]) for kind in self._every_type)
        return min(self._all_reduce_s(first, stop, kind, devices) for kind in every)

    def shared(
        self, first: int, stop: int, counts: Counts, behind: float, below: float = inf
    ) -> tuple[float, tuple[int, ...]]:
        """The seconds, and the rows of all devices of each kind; none where they do not fit.

        With DPU a stage does not wait for those behind it (section IV-B). With a barrier it is the
        later of its own end and that of all behind it, which begin when they have their input.
        """
        there = [k for k, count in enumerate(counts) if count]
        numbers, batch = [counts[k] for k in there], self.costs.batch
        kinds = [self.kinds[k] for k in there]
        if sum(numbers) > batch:
            return inf, ()
        shared = self._all_reduce_s(first, stop, self._types(counts), sum(numbers))
        if self.decoupled:
            behind = -inf
        turn = self._turn

        def of(kind: str) -> _Seconds:
            def seconds(rows: int) -> float:
                busy, beside, relay = turn(first, stop, kind, rows)
                return max(busy + shared, beside, relay + behind)

            return seconds

        times = [of(kind.type) for kind in kinds]
        most = [self._most(first, stop, kind.memory) for kind in kinds]
        found, each = least(numbers, times, most, batch, below)
        own = iter(_exactly(numbers, each, batch)) if each else iter(())
        return found, tuple(next(own) if n else 0 for n in counts) if each else ()


def least(
    numbers: Sequence[int],
    times: Sequence[_Seconds],
    most: Sequence[int],
    rows: int,
    below: float = inf,
) -> tuple[float, tuple[int, ...]]:
    """The shortest time in which so many devices of each kind do so many rows, one each at least.

    Args:
        numbers: of devices of each kind.
        times: of a device of each kind by its rows; more never take less.
        most: rows of a device of each kind.
        rows: of all devices together.
        below: what it is not sought beyond.

    Returns:
        It, and the most rows of a device of each kind in that time; infinite and none where
        it is not below, or they cannot have so many.
    """

    def enough(each: Sequence[int]) -> bool:
        return min(each) > 0 and sum(map(int.__mul__, numbers, each)) >= rows

    def within(limit: float, bisect: Callable[..., int]) -> list[int]:
        """Rows of each kind in this time, of those that are not known."""
        every = zip(low, high, times, strict=True)
        return [a + bisect(range(a + 1, b + 1), limit, key=f) for a, b, f in every]

    low, high = [0] * len(numbers), [min(own, rows) for own in most]
    if not enough(high):
        return inf, ()
    if below < inf and not enough(high := within(below, bisect_left)):
        return inf, ()
    while True:  # low is too few and high is enough; in each turn a gap is halved
        kind = max(range(len(numbers)), key=lambda k: high[k] - low[k])
        middle = (low[kind] + high[kind] + 1) // 2
        limit = times[kind](middle)
        these, fewer = within(limit, bisect_right), within(limit, bisect_left)
        these[kind], fewer[kind] = middle, middle - 1
        if not enough(these):
            low = these
        elif enough(fewer):
            high = fewer
        else:
            return limit, tuple(these)


def _exactly(numbers: Sequence[int], rows: Sequence[int], batch: int) -> list[int]:
    """Rows of each kind: the most that its devices may have, less what is too much together."""
    too_many = sum(n * r for n, r in zip(numbers, rows, strict=True)) - batch
    found = []
    for number, each in zip(numbers, rows, strict=True):
        fewer = min(too_many, number * (each - 1))
        too_many -= fewer
        found.append(number * each - fewer)
    return found


def _lines(costs: StageCosts, kind: str) -> list[list[float]]:
    """Lines over rows below all computing and below the teacher's: base and slope of each.

    They are of all blocks before each boundary.
    """
    found: list[list[float]] = [[], [], [], []]
    blocks = [costs.measured(block, kind) for block in range(costs.blocks)]
    # Not level, so that something can be divided by it
    least = 1e-6 * max(points[-1][1] for points in blocks) / costs.batch or 1e-12
    for points in blocks:
        rows, *every = zip(*points, strict=True)
        for k, times in enumerate(every):
            slope = max(least, (times[-1] - times[0]) / max(1, rows[-1] - rows[0]))
            found[2 * k].append(
                min(s - slope * r for r, s in zip(rows, times, strict=True))
            )
            found[2 * k + 1].append(slope)
    return [sums(own) for own in found]
