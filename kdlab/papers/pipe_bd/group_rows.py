"""The rows of a stage's devices: so many for each that the slowest is done as early as can be.

Devices of one kind get as many rows as each other, one more or less. More rows never take less
time, so among two kinds the best is where the time of the one meets that of the other, and among
several the same again (`_least`); it is exact, since nothing lies between two numbers of rows.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf

from kdlab.papers.pipe_bd.block_cost import Kind, StageCosts
from kdlab.papers.shares import shared_rows


@dataclass(frozen=True, slots=True)
class GroupRows:
    """Devices for some blocks: of each kind its number and the rows of all of them."""

    seconds: float  # of a step, the all-reduce included; infinite where they do not fit
    relay_s: float  # until the next stage has the output, where a barrier makes that count
    # Of all devices of each kind together; none where they do not fit
    rows: tuple[int, ...]

    def rows_of(self, devices: Sequence[Kind], kinds: Sequence[Kind]) -> tuple[int, ...]:
        """Rows of each of these devices, the first ones of a kind at most one more."""
        if not self.rows:
            return ()
        shares = {
            kind: iter(shared_rows(rows, [1] * devices.count(kind)))
            for kind, rows in zip(kinds, self.rows, strict=True)
            if rows
        }
        return tuple(next(shares[kind]) for kind in devices)


_MOST_NESTED = 2  # kinds of a group for which one search lies in another
_HALVINGS = 60
_LONG = 1e18  # seconds: no limit

_Seconds = Callable[[int], float]  # of a device with so many rows
_NONE = GroupRows(inf, inf, ())


class Groups:
    """The best rows for every group of a profile's devices, each found once."""

    def __init__(
        self, costs: StageCosts, kinds: Sequence[Kind], *, decoupled: bool
    ) -> None:
        self.costs, self.kinds, self.decoupled = costs, kinds, decoupled
        self._found: dict[tuple[int, int, tuple[int, ...]], GroupRows] = {}

    def of(self, first: int, stop: int, counts: tuple[int, ...]) -> GroupRows:
        """Blocks [first, stop) on so many devices of each kind."""
        key = first, stop, counts
        found = self._found.get(key)
        if found is None:
            found = self._found[key] = self._best(first, stop, counts)
        return found

    def _best(self, first: int, stop: int, counts: tuple[int, ...]) -> GroupRows:
        costs, there = self.costs, [k for k, count in enumerate(counts) if count]
        if sum(counts) > costs.batch:
            return _NONE
        numbers = [counts[k] for k in there]
        most = [costs.most_rows(first, stop, self.kinds[k].memory) for k in there]
        types = [self.kinds[k].type for k in there for _ in range(counts[k])]
        shared = costs.all_reduce_s(first, stop, types)
        times = [
            _capped(
                partial(
                    costs.device_s,
                    first,
                    stop,
                    self.kinds[k].type,
                    shared=shared,
                    decoupled=self.decoupled,
                ),
                cap,
            )
            for k, cap in zip(there, most, strict=True)
        ]
        seconds, rows = _least(numbers, times, costs.batch)
        if seconds == inf:
            return _NONE
        relayed = 0.0
        if not self.decoupled and stop < costs.blocks:
            # Of all that are as fast, the rows that let the next stage begin first.
            caps = [_most_below(f, seconds, costs.batch) for f in times]
            relays = [
                _capped(partial(costs.relay_s, first, stop, self.kinds[k].type), cap)
                for k, cap in zip(there, caps, strict=True)
            ]
            relayed, rows = _least(numbers, relays, costs.batch)
        own = iter(_exactly(numbers, rows, costs.batch))
        each = tuple(next(own) if count else 0 for count in counts)
        return GroupRows(seconds, relayed, each)


def _capped(seconds: _Seconds, most: int) -> _Seconds:
    return lambda rows: seconds(rows) if rows <= most else inf


def _least(
    numbers: Sequence[int], times: Sequence[_Seconds], rows: int
) -> tuple[float, tuple[int, ...]]:
    """The shortest time in which so many devices of each kind do so many rows, one each at least.

    Returns:
        It, and the most rows of a device of each kind in that time.
    """
    if len(numbers) > _MOST_NESTED:
        return _least_of_many(numbers, times, rows)
    count, seconds, others = numbers[0], times[0], numbers[1:]
    rows = max(rows, sum(numbers))
    if not others:
        own = -(-rows // count)
        return seconds(own), (own,)

    def rest(own: int) -> tuple[float, tuple[int, ...]]:
        return _least(others, times[1:], rows - count * own)

    # The fewest rows with which this kind is not done before the others
    some = range(1, -(-(rows - sum(others)) // count))
    fewest = 1 + bisect_left(some, True, key=lambda own: seconds(own) >= rest(own)[0])
    best: tuple[float, tuple[int, ...]] = (inf, ())
    for own in (fewest, fewest - 1):
        if own >= 1:
            others_s, others_rows = rest(own)
            found = max(seconds(own), others_s)
            if found < best[0]:
                best = found, (own, *others_rows)
    return best


def _least_of_many(
    numbers: Sequence[int], times: Sequence[_Seconds], rows: int
) -> tuple[float, tuple[int, ...]]:
    """The same for more kinds, by halving the time that is allowed."""
    rows = max(rows, sum(numbers))
    high = max(seconds(rows) for seconds in times)
    if high == inf:  # of those that cannot have all rows what they can have
        finite = [s(few) for s in times if (few := _most_below(s, _LONG, rows))]
        high = max(finite, default=inf)

    def within(limit: float) -> list[int]:
        return [_most_below(seconds, limit, rows) for seconds in times]

    def enough(limit: float) -> bool:
        most = within(limit)
        return (
            min(most) > 0 and sum(n * r for n, r in zip(numbers, most, strict=True)) >= rows
        )

    if high == inf or not enough(high):
        return inf, ()
    most = within(least(enough, high)[1])
    return max(s(r) for s, r in zip(times, most, strict=True)), tuple(most)


def _most_below(seconds: _Seconds, limit: float, batch: int) -> int:
    """The most rows that take no longer."""
    return bisect_right(range(1, batch + 1), limit, key=seconds)


def least(enough: Callable[[float], bool], high: float) -> tuple[float, float]:
    """The last number that is too little and the first that is enough, as `high` is."""
    low = 0.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return low, high


def _exactly(numbers: Sequence[int], rows: Sequence[int], batch: int) -> tuple[int, ...]:
    """Rows of each kind: the most that its devices may have, less what is too much together."""
    too_many = sum(n * r for n, r in zip(numbers, rows, strict=True)) - batch
    found = []
    for number, each in zip(numbers, rows, strict=True):
        fewer = min(too_many, number * (each - 1))
        too_many -= fewer
        found.append(number * each - fewer)
    return tuple(found)
