"""Lower bound of the step time of plans with a barrier (beyond the paper).

With a barrier a stage waits for the relay before it (Fig. 3b), and the longer the fewer devices the
stages before it have. Prices of single stages (device_prices.py) do not know that, so their bound
is a third below the best plans. Here all blocks from one on have a least price by the time left:

    price(first, time) = min over (stop, devices) that do a stage in time of
        price of the devices + price(stop, time - their relay)

Where all blocks cost more than all devices, no plan has so short a step.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import ceil, inf

from kdlab.papers.pipe_bd.device_prices import LESS, DevicePrices

_STEPS = 200  # of the times that are told apart
# Of a device's speed in its price: quick ones are worth more where others wait for them. Which one
# gives the best bound differs.
_EXPONENTS = (2.0, 2.5, 1.5)
NEAR = 1.05  # over the bound a plan is near enough: no other bound or order of devices is tried
_MORE_ROWS = 1.06  # from one number of rows that is tried to the next


def barrier_bound_s(prices: DevicePrices, known_s: float) -> float:
    """Seconds that no step of a plan with a barrier is shorter than.

    Args:
        prices: of devices, for groups with a barrier.
        known_s: seconds of a plan's step; at most these are returned.
    """
    bound, devices = 0.0, (prices.groups, prices.numbers, prices.widest)
    for exponent in _EXPONENTS:
        if known_s > NEAR * bound:
            raised = DevicePrices(*devices, exponent=exponent)
            bound = max(bound, _bound_s(raised, known_s))
    return bound


def _bound_s(prices: DevicePrices, known_s: float) -> float:
    groups, blocks, step_s = prices.groups, prices.costs.blocks, known_s / _STEPS
    before, worth = prices.needed(known_s).before, prices.worth / LESS
    waits, work = (
        groups.relay_until(prices.costs.devices),
        groups.least_work(prices.numbers),
    )
    rows = _rows(prices)
    # Negative prices by block and steps of time left, in ascending order; -inf where no plan as
    # quick as the known one can pay them
    table = [[-inf] * (_STEPS + 1) for _ in range(blocks)] + [[0.0] * (_STEPS + 1)]
    for first in range(blocks - 1, -1, -1):
        negative, left, budget = table[first], known_s - waits[first], worth - before[first]
        for stop in range(first + 1, blocks + 1):
            if work[stop] - work[first] > left:  # and so does every longer stage
                break
            behind = table[stop]
            dearest = budget + behind[-1]  # what is behind it costs this at least
            for price, stage_s, relay_s in _stages(
                prices, rows, first, stop, left, dearest
            ):
                relay = int(relay_s / step_s)
                # From where the stage ends in time and what is behind it can be paid ...
                paid = bisect_left(behind, price - budget)
                begin = max(ceil(stage_s / step_s), relay + paid)
                # ... to where another stage costs no more than this one with the most time
                end = bisect_left(negative, behind[max(0, _STEPS - relay)] - price)
                if begin < end:
                    # Not `max`, which takes twice as long here
                    negative[begin:end] = [
                        known if known > rest - price else rest - price
                        for known, rest in zip(
                            negative[begin:end],
                            behind[begin - relay : end - relay],
                            strict=True,
                        )
                    ]
    return known_s * (max(0, bisect_left(table[0], -worth) - 1) / _STEPS)


def _rows(prices: DevicePrices) -> list[tuple[int, int]]:
    """Ranges of the rows of a device, the least and one past the last; the batch alone."""
    edges = [prices.costs.batch + 1, prices.costs.batch]
    while edges[-1] > 1 and prices.widest > 1:
        edges.append(min(edges[-1] - 1, ceil(edges[-1] / _MORE_ROWS)))
    return list(pairwise(reversed(edges)))


def _stages(
    prices: DevicePrices,
    rows: Sequence[tuple[int, int]],
    first: int,
    stop: int,
    left_s: float,
    dearest: float,
) -> Iterator[tuple[float, float, float]]:
    """Least price of groups, seconds of the stage, and until the next one has its input.

    A row costs least on some kind of a group's devices. Had that kind all rows, with as many on
    each of its devices, counted in parts, these would cost no more and be as quick.
    """
    costs, groups = prices.costs, prices.groups
    shared_s = groups.least_all_reduce_s(first, stop, 2)
    for kind, price in zip(groups.kinds, prices.of, strict=True):
        most = costs.most_rows(first, stop, kind.memory)
        for least, end in rows:
            group_price = price * costs.batch / (end - 1)
            if group_price > dearest:  # more rows, on fewer devices, cost less
                continue
            turn = costs.turn(first, stop, kind.type, least, decoupled=False)
            if turn.busy * LESS > left_s or least > most:  # and more rows all the more
                break
            stage_s = (turn.busy + (shared_s if least < costs.batch else 0.0)) * LESS
            if stage_s <= left_s:
                yield group_price, stage_s, turn.relay * LESS
