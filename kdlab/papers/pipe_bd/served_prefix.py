"""A frozen prefix: a pool computes the teacher's first blocks (beyond the paper).

The teacher's blocks do not change, so whoever has the images can compute the first ones: a
pool of teachers (EDL-Dist) instead of the pipeline. Its first stage then has only students
to train for those blocks; what it gets per row is every output of them, for targets and
for the block behind.

That pays when the pool delivers rows as fast as the pipeline would take them, and when
taking them over costs a device less than computing them. The pool's rate is measured with
everything between: its models, its links, the reader. A prefix must lie in the first
stage, so for a search its blocks are one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from kdlab.papers.pipe_bd.block_cost import Block, Profile, StageCosts
from kdlab.papers.pipe_bd.execution_plan import ExecutionPlan, NoPlan, PlanName, programme
from kdlab.papers.pipe_bd.stages import Plan, Stage


@dataclass(frozen=True, slots=True)
class PoolSupply:
    """What a pool was measured to deliver."""

    blocks: int  # of the teacher, from the first on
    rows_per_s: float  # with their outputs, while the devices computed
    take_s: float  # seconds a device needs to take over a whole batch of them


def with_supply(
    name: PlanName,
    costs: StageCosts,
    supply: PoolSupply,
    *,
    decoupled: bool = True,
    always: bool = False,
) -> ExecutionPlan:
    """The better of the plans with and without the pool; `why` says which, with numbers.

    With `always` it serves whatever it costs. Not for the baselines, which run every
    teacher block themselves.

    Raises:
        NoPlan: as `programme` does.
    """
    plain = programme(name, costs, decoupled=decoupled)
    merged = costs.of(_merged(costs.profile, supply))
    try:
        found = programme(name, merged, decoupled=decoupled)
    except NoPlan as error:
        if always:
            raise
        return replace(plain, why=f"{plain.why}; no teacher block served: {error}")
    supplied_s = costs.batch / supply.rows_per_s
    seconds = max(found.predicted_s, supplied_s)
    which = f"teacher blocks 0 to {supply.blocks - 1}" if supply.blocks > 1 else "block 0"
    numbers = (
        f"{which} served: {1e3 * seconds:.1f} ms a step, {1e3 * plain.predicted_s:.1f} ms "
        f"without (the pool delivers {supply.rows_per_s:.0f} rows/s, one batch in "
        f"{1e3 * supplied_s:.1f} ms; the devices would take {1e3 * found.predicted_s:.1f} ms)"
    )
    if seconds >= plain.predicted_s and not always:
        return replace(plain, why=f"{plain.why}; does not pay: {numbers}")
    (plan,) = found.plans
    told = "as told" if seconds >= plain.predicted_s else "pays"
    return ExecutionPlan(
        name,
        (_expanded(plan, supply.blocks),),
        seconds,
        f"{found.why}; {told}: {numbers}",
        served=supply.blocks,
    )


def served_profile(profile: Profile, supply: PoolSupply) -> Profile:
    """The same blocks when a pool computes the teacher's first ones."""
    types = {
        name: [
            replace(block, teacher_s=dict.fromkeys(block.teacher_s, 0.0))
            if number < supply.blocks
            else block
            for number, block in enumerate(blocks)
        ]
        for name, blocks in profile.types.items()
    }
    # The thread that trains takes them over.
    return replace(profile, types=types, load_s=supply.take_s, load_overlap=0.0)


def _merged(profile: Profile, supply: PoolSupply) -> Profile:
    """The same with the served blocks as one, so that no plan parts them."""
    served = served_profile(profile, supply)
    types = {
        name: [_together(blocks[: supply.blocks]), *blocks[supply.blocks :]]
        for name, blocks in served.types.items()
    }
    return replace(served, types=types)


def _together(blocks: Sequence[Block]) -> Block:
    def sums(parts: Sequence[Mapping[int, float]]) -> dict[int, float]:
        return {rows: sum(part[rows] for part in parts) for rows in parts[0]}

    return Block(
        teacher_s=sums([b.teacher_s for b in blocks]),
        student_s=sums([b.student_s for b in blocks]),
        output_bytes=blocks[-1].output_bytes,
        gradient_bytes=sum(b.gradient_bytes for b in blocks),
        fixed_bytes=sum(b.fixed_bytes for b in blocks),
        row_bytes=sum(b.row_bytes for b in blocks),
        norms=sum(b.norms for b in blocks),
    )


def _expanded(plan: Plan, served: int) -> Plan:
    """A plan of merged blocks as one of all blocks."""

    def moved(stage: Stage) -> Stage:
        first = stage.first + served - 1 if stage.first else 0
        return replace(stage, first=first, stop=stage.stop + served - 1)

    return replace(plan, stages=tuple(map(moved, plan.stages)))
