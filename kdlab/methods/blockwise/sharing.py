"""What it costs devices to share a stage, measured by sharing all blocks for some steps.

A link's latency says what a meeting takes when everybody is there. In a shared stage devices meet
in every batch norm, forward and backward, and none comes at the same moment: with many norms that
is most of what sharing costs. So before a plan is made all devices train all blocks together for
some steps (the plan of IR), on copies of the students; what that takes beyond their own work is
compared with what the links say.
"""

import copy
from collections.abc import Callable, Sequence
from math import inf

import torch.distributed as dist
from torch import Tensor, nn

from kdlab.methods.blockwise.pairs import BlockPair
from kdlab.methods.blockwise.profiling import paths_of
from kdlab.methods.blockwise.stage import StageJob, Worker, stage_groups
from kdlab.papers.pipe_bd.block_cost import StageCosts
from kdlab.papers.pipe_bd.execution_plan import all_on_all, fits
from kdlab.papers.pipe_bd.replanning import DeviceTook, device_took, sharing_of
from kdlab.supervision.process_groups import from_all
from kdlab.train.recipe import Stepper

_STEPS = 6  # that count, one turn of a supernet at least
_WARM_UP = 2


def measured_sharing(
    costs: StageCosts,
    rank: int,
    pairs: Sequence[BlockPair],
    views: Tensor,
    optimizer: Callable[[nn.Module], Stepper],
    alive: Callable[[], None] = lambda: None,
) -> float:
    """Factor for what the profile says of meetings; every rank must call this.

    Args:
        costs: of the profile of all devices.
        rank: this device.
        pairs: of all blocks; their students stay as they are.
        views: (N, C, H, W) normalised, N the batch.
        optimizer: of a student's block.
        alive: called before each step.

    Returns:
        1 where nothing can be told: a device alone, fewer rows than two for each, or too little
        memory for all blocks on each.
    """
    if costs.devices < 2 or costs.batch < 2 * costs.devices or len(views) < costs.batch:
        return 1.0
    plan = all_on_all(costs)
    if costs.step_s(plan) == inf or not fits(plan, costs):
        return 1.0  # nobody will share all blocks then
    groups = stage_groups([plan])
    own = [BlockPair(p.teacher, copy.deepcopy(p.student), p.loss) for p in pairs]
    students = nn.ModuleList([pair.student for pair in own])
    paths = paths_of(students)

    def before(step: int) -> None:
        alive()
        if paths is not None:
            paths.choose(step)

    job = StageJob(
        pairs=own,
        optimizers=[optimizer(pair.student) for pair in own],
        load=lambda step, start, stop: views[start:stop],
        schedule=before,
        norm="sync" if costs.sync_norms else "local",
    )
    worker = Worker(plan, rank, job, groups, views.shape[1:])
    worker.exact = True
    worker.run(_WARM_UP + max(_STEPS, paths.turn if paths else 1))
    spans = [span for span in worker.spans if span.step >= _WARM_UP]
    took = from_all(device_took(rank, spans), DeviceTook)
    for group in groups.values():
        dist.destroy_process_group(group)
    return sharing_of(plan.stages[0], costs, took) or 1.0
