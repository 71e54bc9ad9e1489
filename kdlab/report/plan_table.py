"""A plan as a table: who does what, and what it is expected to cost."""

from collections.abc import Sequence

from kdlab.papers.pipe_bd.block_cost import StageCosts
from kdlab.papers.pipe_bd.execution_plan import ExecutionPlan, memory_bytes
from kdlab.papers.pipe_bd.stages import Plan, Stage
from kdlab.report.table import text_table

_HEAD = (
    "blocks",
    "devices",
    "rows",
    "teacher ms",
    "student ms",
    "all-reduce",
    "exposed",
    "step ms",
    "memory MB",
)


def plan_table(made: ExecutionPlan, costs: StageCosts, cuts: Sequence[str] = ()) -> str:
    """One line for each stage, then the whole; `cuts` are the ends of the student's blocks."""
    memory = memory_bytes(made, costs)
    rows = [
        _row(stage, costs, memory, plan) for plan in made.plans for stage in plan.stages
    ]
    if idle := made.idle(costs.devices):
        rows.append(["idle", ", ".join(map(str, idle)), *[""] * (len(_HEAD) - 2)])
    ideal = 1e3 * costs.ideal_s()
    ends = ", ".join(cuts) or "none"
    return (
        f"{text_table(_HEAD, rows)}\n"
        f"{made.name}: {made.why}. A step of all blocks is expected to take "
        f"{1e3 * made.predicted_s:.1f} ms; all work shared evenly: {ideal:.1f} ms.\n"
        f"student blocks end with: {ends}"
    )


def _row(stage: Stage, costs: StageCosts, memory: list[float], plan: Plan) -> list[str]:
    last = stage.stop - 1
    blocks = str(stage.first) if last == stage.first else f"{stage.first} to {last}"
    head = [blocks, ", ".join(map(str, stage.devices)), ", ".join(map(str, stage.rows))]
    held = max(memory[device] for device in stage.devices) / 1e6
    task = plan.blocks != range(costs.blocks)  # a baseline's
    cost = costs.stage_cost(stage, decoupled=plan.decoupled, task=task)
    parts = [cost.teacher, cost.student, cost.all_reduce, cost.exposed, cost.seconds]
    return [*head, *(f"{1e3 * seconds:.2f}" for seconds in parts), f"{held:.0f}"]
