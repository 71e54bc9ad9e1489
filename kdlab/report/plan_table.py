"""A plan as a table: stages, devices and predicted costs."""

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


def plan_table(plan: ExecutionPlan, costs: StageCosts, cuts: Sequence[str] = ()) -> str:
    """Return a row for each stage and a summary; `cuts` are the ends of student blocks."""
    memory = memory_bytes(plan, costs)
    rows = [
        _row(stage, costs, memory, part) for part in plan.plans for stage in part.stages
    ]
    if idle := plan.idle(costs.devices):
        rows.append(["idle", ", ".join(map(str, idle)), *[""] * (len(_HEAD) - 2)])
    ideal = 1e3 * costs.ideal_s()
    ends = ", ".join(cuts) or "none"
    return (
        f"{text_table(_HEAD, rows)}\n"
        f"{plan.name}: {plan.why}. Predicted time of a step of all blocks: "
        f"{1e3 * plan.predicted_s:.1f} ms; with all work shared evenly: {ideal:.1f} ms.\n"
        f"student blocks end with: {ends}"
    )


def _row(stage: Stage, costs: StageCosts, memory: list[float], plan: Plan) -> list[str]:
    last = stage.stop - 1
    blocks = str(stage.first) if last == stage.first else f"{stage.first} to {last}"
    head = [blocks, ", ".join(map(str, stage.devices)), ", ".join(map(str, stage.rows))]
    memory_mb = max(memory[device] for device in stage.devices) / 1e6
    task = plan.blocks != range(costs.blocks)  # a baseline's
    cost = costs.stage_cost(stage, decoupled=plan.decoupled, task=task)
    parts = [cost.teacher, cost.student, cost.all_reduce, cost.exposed, cost.seconds]
    return [*head, *(f"{1e3 * seconds:.2f}" for seconds in parts), f"{memory_mb:.0f}"]
