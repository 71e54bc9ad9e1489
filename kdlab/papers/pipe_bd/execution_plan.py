"""Plans that devices execute in every step: a pipeline, or the tasks of a baseline.

    TR, IR, AHD     one plan of all devices
    DP              one plan for each block, on all devices in turn
    LS              one plan for each block, on the device that it was packed onto

All train every block once with every batch, so they differ in time alone (VII-D).
"""

from dataclasses import dataclass, replace
from math import inf
from typing import Literal

from kdlab.papers.pipe_bd.block_cost import StageCosts
from kdlab.papers.pipe_bd.hybrid_plan import best_plan, count, internal_relaying
from kdlab.papers.pipe_bd.layerwise import packed
from kdlab.papers.pipe_bd.stages import Plan

PlanName = Literal["tr", "ahd", "ir", "dp", "ls"]  # VII-A's ablation, and VI-C's baselines
_ERROR = 0.05  # relative error of a profiled time
RELAYED: frozenset[str] = frozenset({"tr", "ahd", "ir"})  # one pipeline of all devices


class NoPlan(ValueError):
    """No plan of this kind is possible; the message says why."""


@dataclass(frozen=True, slots=True)
class ExecutionPlan:
    """Plans that are executed in every step."""

    name: PlanName
    plans: tuple[Plan, ...]  # a device executes its own in this order
    predicted_s: float  # seconds of a step of every block
    why: str  # how it was chosen, for users

    @property
    def blocks(self) -> int:
        return max(plan.blocks.stop for plan in self.plans)

    def plans_of(self, device: int) -> list[Plan]:
        return [plan for plan in self.plans if device in plan.devices]

    def owner(self, block: int) -> int:
        """Device whose copy of a student block counts: the first of its stage."""
        stages = (stage for plan in self.plans for stage in plan.stages)
        return next(stage.devices[0] for stage in stages if block in stage.blocks)

    def idle(self, devices: int) -> list[int]:
        """Devices that train nothing."""
        return [device for device in range(devices) if not self.plans_of(device)]

    @property
    def widest(self) -> int:
        """Devices of the largest stage; a batch needs as many rows at least."""
        return max(len(s.devices) for plan in self.plans for s in plan.stages)


def programme(
    name: PlanName, costs: StageCosts, *, decoupled: bool = True
) -> ExecutionPlan:
    """Make the plan of this name for a profile.

    Raises:
        NoPlan: it cannot use so many devices, or their memory is too small.
    """
    blocks, devices = costs.blocks, costs.devices
    _check_sizes(name, blocks, devices, costs.batch)
    if name in ("tr", "ahd"):  # line 4
        plan, why = _searched(name, costs, decoupled=decoupled)
        plans = [plan]
    elif name == "ir":  # VII-A: all blocks are only split along the batch dimension
        plans = [internal_relaying(costs, decoupled=decoupled)]
        why = "every block on every device"
    elif name == "dp":
        # II-B trains a block for n epochs before the next; here each step trains all blocks, with
        # the same teacher executions, and loading once for each block.
        tasks = [costs.task(b, range(devices)) for b in range(blocks)]
        why = "block after block, each on all devices"
        plans = [Plan(costs.batch, (task,)) for task in tasks]
    else:  # LS (II-B): each block is one task
        packing = packed(blocks, devices, costs.own_s, costs.task_s, error=_ERROR)
        tasks = [costs.task(b, [d]) for d, some in enumerate(packing.tasks) for b in some]
        why = "the block with most work first"
        plans = [Plan(costs.batch, (task,)) for task in tasks]
    plan_set = ExecutionPlan(name, tuple(plans), 0.0, why)
    _check_memory(plan_set, costs)
    if idle := plan_set.idle(devices):  # not in the paper, whose plans use all devices
        named = f"device{'s' * (len(idle) > 1)} {', '.join(map(str, idle))}"
        why += f"; {named} idle: no plan was found that uses more devices and is as fast"
    return replace(plan_set, predicted_s=predicted_s(plan_set, costs), why=why)


def _check_sizes(name: PlanName, blocks: int, devices: int, batch: int) -> None:
    if name == "tr" and devices > blocks:  # IV-C: C(B - 1, N - 1) choices, 0 for N > B
        raise NoPlan(
            f"plan: tr gives every device a block of its own, and there are {blocks} blocks "
            f"for {devices} devices. Take plan: ahd, or at most {blocks} devices."
        )
    if name in ("ir", "dp") and devices > batch:  # both split every batch over all devices
        raise NoPlan(
            f"plan: {name} gives every device rows of each batch, and {batch} rows are fewer "
            f"than {devices} devices. Take a larger batch or fewer devices."
        )
    if name == "ls" and devices > blocks:  # II-B: workload imbalance with too few layers
        raise NoPlan(
            f"plan: ls has one task for each block, and {blocks} blocks leave "
            f"{devices - blocks} of {devices} devices without any. Take at most {blocks}."
        )


def _searched(name: PlanName, costs: StageCosts, *, decoupled: bool) -> tuple[Plan, str]:
    single = name == "tr"
    search = best_plan(costs, decoupled=decoupled, widest=1 if single else None)
    kinds = len(set(costs.profile.devices))
    if search.step_s > search.bound_s * (1 + 1e-9):
        why = (  # IV-C searches exhaustively, for N at around ten and one kind of device
            f"the best that was found for {kinds} kinds of devices; no plan is faster "
            f"than {1e3 * search.bound_s:.1f} ms a step"
        )
    elif single:
        why = "best of the plans with one device for each stage"
    elif kinds == 1:  # the plans of N devices and of fewer; IV-C prints no number for AHD
        plans = sum(count(costs.blocks, used + 1) for used in range(costs.devices))
        why = f"best of {plans} plans"
    else:
        why = f"best of all plans for {kinds} kinds of devices"
    if search.plan is None:
        limits = sorted(costs.profile.memory_bytes or [0.0])
        memory = f"{limits[0] / 1e9:.3g} GB"
        if limits[-1] > limits[0]:
            memory = f"{limits[0] / 1e9:.3g} to {limits[-1] / 1e9:.3g} GB"
        needed = costs.fixed_bytes(0, costs.blocks)
        needed += costs.batch * costs.row_bytes(0, costs.blocks)
        fits = "fits" if search.bound_s == inf else "was found that fits"
        raise NoPlan(
            f"No plan of {costs.blocks} blocks and {costs.batch} rows {fits} into the memory of "
            f"{costs.devices} devices ({memory} each). A step of all blocks "
            f"on one device needs {needed / 1e9:.3g} GB. Take a smaller batch or more devices."
        )
    return search.plan, why


def predicted_s(plan_set: ExecutionPlan, costs: StageCosts) -> float:
    """Predict the seconds of a step of an existing plan, by any profile."""
    if plan_set.name == "dp":  # block after block, so the times add up
        return costs.data_parallel_s()
    if plan_set.name == "ls":  # the device with the most work
        tasks = [(plan.devices[0], plan.stages[0].first) for plan in plan_set.plans]
        seconds = {device: 0.0 for device, _ in tasks}
        for device, block in tasks:
            seconds[device] += costs.task_s(block, device)
        return max(seconds.values())
    (plan,) = plan_set.plans
    return costs.step_s(plan)


def memory_bytes(plan_set: ExecutionPlan, costs: StageCosts) -> list[float]:
    """Bytes that each device needs: all weights it holds, and rows of its largest plan."""
    needed = []
    for device in range(costs.devices):
        held, largest = set[int](), 0.0
        for plan in plan_set.plans_of(device):
            stage = plan.stages[plan.stage_of(device)]
            relays = stage.stop < plan.blocks.stop
            of_row = costs.row_bytes(stage.first, stage.stop, relays=relays)
            largest = max(largest, stage.rows[stage.devices.index(device)] * of_row)
            # II-B: a baseline's device holds the teacher's blocks before its own, too
            held |= set(range(0 if stage.from_data else stage.first, stage.stop))
        needed.append(largest + sum(costs.fixed_bytes(b, b + 1) for b in held))
    return needed


def _check_memory(plan_set: ExecutionPlan, costs: StageCosts) -> None:
    limits = costs.profile.memory_bytes
    if limits is None:
        return
    for device, needed in enumerate(memory_bytes(plan_set, costs)):
        if needed > limits[device] * (
            1 + 1e-9
        ):  # sums in another order differ in their last bits
            raise NoPlan(
                f"plan: {plan_set.name} needs {needed / 1e9:.3g} GB on device {device}, which has "
                f"{limits[device] / 1e9:.3g} GB. Take a smaller batch, more devices, or plan: "
                "ahd, which looks for a plan that fits."
            )
