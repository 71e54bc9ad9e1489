"""What every device does in each step: a pipeline, or the tasks of a baseline.

    TR, IR, AHD     one plan of all devices
    DP              one plan for each block, all devices in each, one after the other
    LS              one plan for each block, each on the device it was packed onto

All train every block once with every batch, so they differ in nothing but time.
"""

from dataclasses import dataclass, replace
from math import inf
from typing import Literal

from kdlab.papers.pipe_bd.block_cost import StageCosts
from kdlab.papers.pipe_bd.hybrid_plan import best_plan, count, internal_relaying
from kdlab.papers.pipe_bd.layerwise import packed
from kdlab.papers.pipe_bd.stages import Plan

PlanName = Literal["tr", "ahd", "ir", "dp", "ls"]
_ERROR = 0.05  # share that a profiled time is off
RELAYED: frozenset[str] = frozenset({"tr", "ahd", "ir"})  # one pipeline of all devices


class NoPlan(ValueError):
    """There is no plan of this kind; the message says why."""


@dataclass(frozen=True, slots=True)
class ExecutionPlan:
    """Plans that are carried out in every step."""

    name: PlanName  # of the method that made it
    plans: tuple[Plan, ...]  # in the order a device does its own
    predicted_s: float  # seconds of a step of every block
    why: str  # how it was chosen, for people

    @property
    def blocks(self) -> int:
        return max(plan.blocks.stop for plan in self.plans)

    def of(self, device: int) -> list[Plan]:
        return [plan for plan in self.plans if device in plan.devices]

    def owner(self, block: int) -> int:
        """The device whose copy of a student block counts."""
        stages = (stage for plan in self.plans for stage in plan.stages)
        return next(stage.devices[0] for stage in stages if block in stage.blocks)

    def idle(self, devices: int) -> list[int]:
        """Those of so many devices that train nothing."""
        return [device for device in range(devices) if not self.of(device)]

    @property
    def widest(self) -> int:
        """Devices of the largest group: a batch needs as many rows."""
        return max(len(s.devices) for plan in self.plans for s in plan.stages)


def programme(
    name: PlanName, costs: StageCosts, *, decoupled: bool = True
) -> ExecutionPlan:
    """The plan of that name for a profile.

    Raises:
        NoPlan: too many devices for it, or the devices' memory is too small.
    """
    blocks, devices = costs.blocks, costs.devices
    _check_sizes(name, blocks, devices, costs.batch)
    if name in ("tr", "ahd"):
        plan, why = _searched(name, costs, decoupled=decoupled)
        plans = [plan]
    elif name == "ir":
        plans, why = (
            [internal_relaying(costs, decoupled=decoupled)],
            "every block on every device",
        )
    elif name == "dp":
        tasks = [costs.task(b, range(devices)) for b in range(blocks)]
        why = "block after block, each on all devices"
        plans = [Plan(costs.batch, (task,)) for task in tasks]
    else:
        packing = packed(blocks, devices, costs.own_s, costs.task_s, error=_ERROR)
        tasks = [costs.task(b, [d]) for d, some in enumerate(packing.tasks) for b in some]
        why = "the block with most work first"
        plans = [Plan(costs.batch, (task,)) for task in tasks]
    made = ExecutionPlan(name, tuple(plans), 0.0, why)
    _check_memory(made, costs)
    if idle := made.idle(devices):
        named = f"device{'s' * (len(idle) > 1)} {', '.join(map(str, idle))}"
        why += f"; {named} idle: no plan of this kind that uses more devices is as fast"
    return replace(made, predicted_s=predicted_s(made, costs), why=why)


def _check_sizes(name: PlanName, blocks: int, devices: int, batch: int) -> None:
    if name == "tr" and devices > blocks:
        raise NoPlan(
            f"plan: tr gives every device a block of its own, and there are {blocks} blocks "
            f"for {devices} devices. Take plan: ahd, or at most {blocks} devices."
        )
    if name in ("ir", "dp") and devices > batch:
        raise NoPlan(
            f"plan: {name} gives every device rows of each batch, and {batch} rows are fewer "
            f"than {devices} devices. Take a larger batch or fewer devices."
        )
    if name == "ls" and devices > blocks:
        raise NoPlan(
            f"plan: ls has one task for each block, and {blocks} blocks leave "
            f"{devices - blocks} of {devices} devices without any. Take at most {blocks}."
        )


def _searched(name: PlanName, costs: StageCosts, *, decoupled: bool) -> tuple[Plan, str]:
    one = name == "tr"
    found = best_plan(costs, decoupled=decoupled, widest=1 if one else None)
    kinds = len(set(costs.profile.devices))
    if found.step_s > found.bound_s * (1 + 1e-9):
        why = (
            f"the best that was found for {kinds} kinds of devices; no plan is faster "
            f"than {1e3 * found.bound_s:.1f} ms a step"
        )
    elif one:
        why = "best of the plans with one device for each stage"
    elif kinds == 1:
        plans = sum(count(costs.blocks, used + 1) for used in range(costs.devices))
        why = f"best of {plans} plans"
    else:
        why = f"best of all plans for {kinds} kinds of devices"
    if found.plan is None:
        limits = sorted(costs.profile.memory_bytes or [0.0])
        given = f"{limits[0] / 1e9:.3g} GB"
        if limits[-1] > limits[0]:
            given = f"{limits[0] / 1e9:.3g} to {limits[-1] / 1e9:.3g} GB"
        alone = costs.fixed_bytes(0, costs.blocks) + costs.batch * costs.row_bytes(
            0, costs.blocks
        )
        fits = "fits" if found.bound_s == inf else "was found that fits"
        raise NoPlan(
            f"No plan of {costs.blocks} blocks and {costs.batch} rows {fits} into the memory of "
            f"{costs.devices} devices ({given} each). A step of all on "
            f"one device needs {alone / 1e9:.3g} GB. Take a smaller batch or "
            "more devices."
        )
    return found.plan, why


def predicted_s(made: ExecutionPlan, costs: StageCosts) -> float:
    """Seconds of a step of what is carried out already, by another profile."""
    if made.name == "dp":
        return costs.data_parallel_s()
    if made.name == "ls":
        tasks = [(plan.devices[0], plan.stages[0].first) for plan in made.plans]
        own = {device: 0.0 for device, _ in tasks}
        for device, block in tasks:
            own[device] += costs.task_s(block, device)
        return max(own.values())
    (plan,) = made.plans
    return costs.step_s(plan)


def memory_bytes(made: ExecutionPlan, costs: StageCosts) -> list[float]:
    """What each device needs: all weights it holds, and the largest of its plans."""
    needed = []
    for device in range(costs.devices):
        held, largest = set[int](), 0.0
        for plan in made.of(device):
            stage = plan.stages[plan.stage_of(device)]
            relays = stage.stop < plan.blocks.stop
            of_row = costs.row_bytes(stage.first, stage.stop, relays=relays)
            largest = max(largest, stage.rows[stage.devices.index(device)] * of_row)
            held |= set(range(0 if stage.from_data else stage.first, stage.stop))
        needed.append(largest + sum(costs.fixed_bytes(b, b + 1) for b in held))
    return needed


def _check_memory(made: ExecutionPlan, costs: StageCosts) -> None:
    limits = costs.profile.memory_bytes
    if limits is None:
        return
    for device, needed in enumerate(memory_bytes(made, costs)):
        if needed > limits[device] * (1 + 1e-9):  # sums in another order end in other bits
            raise NoPlan(
                f"plan: {made.name} needs {needed / 1e9:.3g} GB on device {device}, which has "
                f"{limits[device] / 1e9:.3g} GB. Take a smaller batch, more devices, or plan: "
                "ahd, which looks for a plan that fits."
            )
