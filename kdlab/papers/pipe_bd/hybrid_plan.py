"""AHD, automatic hybrid distribution: the plan with the shortest step (section IV-C).

A plan cuts the blocks and the devices, both in their order, into as many groups each:
C(B + N - 2, N - 1) of them for B blocks and N devices. The paper searches all; that is
`exhaustive`, the oracle. `dynamic` finds a plan that is as good without looking at all:
the best way to put the first b blocks on the first n devices ends with some stage, and
what stands before it is the best way for fewer of both.

    best(b, n) = min over (b', n') of max(best(b', n'), cost(b', b, n', n))
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import combinations
from math import comb, inf, nextafter

from kdlab.papers.pipe_bd.block_cost import StageCosts
from kdlab.papers.pipe_bd.stages import Plan, Stage


@dataclass(frozen=True, slots=True)
class PlanFound:
    plan: Plan | None  # None: nothing fits into the devices' memory
    step_s: float
    looked_at: int  # stages or plans, for the record


def count(blocks: int, devices: int) -> int:
    """Plans that use all devices."""
    return comb(blocks + devices - 2, devices - 1)


def candidates(blocks: int, devices: int) -> Iterator[tuple[list[int], list[int]]]:
    """Every (ends of the stages' blocks, ends of their devices)."""
    for stages in range(1, min(blocks, devices) + 1):
        for cuts in combinations(range(1, blocks), stages - 1):
            for splits in combinations(range(1, devices), stages - 1):
                yield [*cuts, blocks], [*splits, devices]


def exhaustive(costs: StageCosts) -> PlanFound:
    """The paper's search. Of plans that are as fast, the one with fewest stages."""
    best, best_s, looked_at = None, inf, 0
    for cuts, splits in candidates(costs.blocks, costs.devices):
        looked_at += 1
        seconds = _slowest(costs, cuts, splits)
        if seconds < best_s:
            best, best_s = (cuts, splits), seconds
    return PlanFound(_plan(costs, *best) if best else None, best_s, looked_at)


def relaying(costs: StageCosts) -> PlanFound:
    """TR: one device per stage, balanced as well as its cuts allow; C(B-1, N-1) ways.

    With more devices than blocks there is no such plan.
    """
    return _dynamic(costs, inf, {1})


def dynamic(costs: StageCosts) -> PlanFound:
    """As good as `exhaustive`, for any number of blocks and devices.

    First among groups of 1, 2, 4 ... devices: what that finds limits the second search,
    since no part of a better plan takes longer than the whole of a worse one.
    """
    devices = costs.devices
    coarse = {1 << k for k in range(devices.bit_length())} | {devices}
    limit = nextafter(_dynamic(costs, inf, coarse).step_s, inf)
    return _dynamic(costs, limit, set(range(1, devices + 1)))


def _dynamic(costs: StageCosts, limit: float, widths: set[int]) -> PlanFound:
    """The best plan below the limit, of stages of these widths."""
    blocks, devices = costs.blocks, costs.devices
    best = [[limit] * (blocks + 1) for _ in range(devices + 1)]
    last: list[list[tuple[int, int]]] = [[(0, 0)] * (blocks + 1) for _ in best]
    reached = [(0, 0)]  # for so many devices: fewest and most blocks below the limit
    best[0][0] = 0.0
    looked_at = 0
    for end in range(1, devices + 1):
        row = best[end]
        # What is left must fit below the limit on the devices that are left.
        left = limit * (devices - end) if end < devices else 0.0
        min_stop = max(1, costs.min_stop(left))
        for start in range(end):
            group = costs.group(start, end) if end - start in widths else None
            if group is None:
                continue
            before, (fewest, most) = best[start], reached[start]
            for stop in range(max(min_stop, fewest + 1), blocks + 1):
                # Stages from the short ones on: once computing alone takes longer than
                # the best so far, every longer one does too.
                for first in range(min(stop - 1, most), fewest - 1, -1):
                    if costs.work(first, stop, group) >= row[stop]:
                        break
                    if before[first] >= row[stop]:
                        continue
                    looked_at += 1
                    if not costs.fits(first, stop, group):
                        break  # and with more blocks even less
                    seconds = max(before[first], costs.seconds(first, stop, group))
                    if seconds < row[stop]:
                        row[stop], last[end][stop] = seconds, (first, start)
        below = [stop for stop in range(1, blocks + 1) if row[stop] < limit]
        reached.append((below[0], below[-1]) if below else (blocks, -1))
    if best[devices][blocks] >= limit:
        return PlanFound(None, inf, looked_at)
    cuts, splits, stop, end = list[int](), list[int](), blocks, devices
    while stop:
        cuts.insert(0, stop)
        splits.insert(0, end)
        stop, end = last[end][stop]
    return PlanFound(_plan(costs, cuts, splits), best[devices][blocks], looked_at)


def _ranges(cuts: list[int], splits: list[int]) -> Iterator[tuple[int, int, int, int]]:
    """Blocks [first, stop) and devices [start, end) of each stage."""
    return zip([0, *cuts[:-1]], cuts, [0, *splits[:-1]], splits, strict=True)


def _slowest(costs: StageCosts, cuts: list[int], splits: list[int]) -> float:
    """Seconds of the slowest stage; infinite when one does not fit."""
    slowest = 0.0
    for first, stop, start, end in _ranges(cuts, splits):
        group = costs.group(start, end)
        if group is None or not costs.fits(first, stop, group):
            return inf
        slowest = max(slowest, costs.seconds(first, stop, group))
    return slowest


def _plan(costs: StageCosts, cuts: list[int], splits: list[int]) -> Plan:
    stages = []
    for first, stop, start, end in _ranges(cuts, splits):
        group = costs.group(start, end)
        assert group is not None
        stages.append(Stage(first, stop, group.devices, group.rows, from_data=first == 0))
    return Plan(costs.batch, tuple(stages))


Search = Callable[[StageCosts], PlanFound]
_MAX_PLANS = 20_000  # about a second's worth


def search_for(blocks: int, devices: int) -> Search:
    """The paper's search while it is short, else the dynamic programme."""
    return exhaustive if count(blocks, devices) <= _MAX_PLANS else dynamic
