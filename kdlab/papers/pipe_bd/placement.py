"""Which device has which place in a plan, where devices of one type have unlike memory."""

from collections.abc import Iterable
from dataclasses import replace

from kdlab.papers.pipe_bd.block_cost import StageCosts
from kdlab.papers.pipe_bd.stages import Plan, Stage

_ENOUGH = 1 + 1e-12  # sums in another order end in other bits


def stage_of(first: int, stop: int, shares: Iterable[tuple[int, int]]) -> Stage:
    """Stage of blocks [first, stop) on devices, each with its rows."""
    devices, rows = zip(*sorted(shares), strict=True)
    return Stage(first, stop, devices, rows, from_data=first == 0)


def placed(plan: Plan, costs: StageCosts) -> Plan | None:
    """The same with other devices of the same types, such that each has memory enough.

    As they stand where that fits; else what needs most is given a device first, which finds
    places for all where there are any.
    """
    parts = [
        (
            costs.fixed_bytes(s.first, s.stop) + rows * costs.row_bytes(s.first, s.stop),
            k,
            d,
            rows,
        )
        for k, s in enumerate(plan.stages)
        for d, rows in zip(s.devices, s.rows, strict=True)
    ]
    for some in (parts, sorted(parts, reverse=True)):
        free = dict(enumerate(costs.kinds))
        shares: list[list[tuple[int, int]]] = [[] for _ in plan.stages]
        for need, number, device, rows in some:
            kind = costs.kinds[device].type
            fit = (
                d for d, k in free.items() if k.type == kind and need <= k.memory * _ENOUGH
            )
            if (own := next(fit, None)) is None:
                break
            del free[own]
            shares[number].append((own, rows))
        else:
            made = zip(plan.stages, shares, strict=True)
            stages = tuple(stage_of(s.first, s.stop, own) for s, own in made)
            return replace(plan, stages=stages)
    return None
