"""Place devices of one type in a plan where their memory differs (beyond the paper)."""

from collections.abc import Iterable
from dataclasses import replace

from kdlab.papers.pipe_bd.block_cost import StageCosts
from kdlab.papers.pipe_bd.stages import Plan, Stage

_ENOUGH = 1 + 1e-12  # sums in another order differ in their last bits


def stage_of(first: int, stop: int, shares: Iterable[tuple[int, int]]) -> Stage:
    """Make a stage of blocks [first, stop) on devices, each with its rows."""
    devices, rows = zip(*sorted(shares), strict=True)
    return Stage(first, stop, devices, rows, from_data=first == 0)


def placed(plan: Plan, costs: StageCosts) -> Plan | None:
    """Return the plan with devices of the same types that have enough memory, or None.

    Keeps the places where they fit; else the largest need is placed first, which finds places for
    all where there are any.
    """
    parts = [
        (
            # Weights, and the rows' activations (Fig. 7: early blocks have the largest)
            costs.fixed_bytes(s.first, s.stop) + rows * costs.row_bytes(s.first, s.stop),
            *(k, d, rows),
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
            if (place := next(fit, None)) is None:
                break  # this order has no place for it
            del free[place]
            shares[number].append((place, rows))
        else:
            placed_stages = zip(plan.stages, shares, strict=True)
            stages = tuple(stage_of(s.first, s.stop, share) for s, share in placed_stages)
            return replace(plan, stages=stages)
    return None
