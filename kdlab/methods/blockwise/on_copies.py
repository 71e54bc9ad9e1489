"""Run steps of a plan on copies of the students, to measure them before the training.

A link's latency is the time of a meeting where all devices are ready. In a shared stage devices
meet in every batch norm, forward and backward, and never arrive at the same moment: with many
norms that is most of the cost of sharing. So all devices train all blocks for some steps (the plan
of IR), and the time beyond their own work is compared with what the links predict. Some steps of
the best plan and of TR are then timed, and the faster one trains.
"""

import copy
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn

from kdlab.methods.blockwise import planning
from kdlab.methods.blockwise.cutting import Cutting
from kdlab.methods.blockwise.profiling import feasible_rows, paths_of, profiled
from kdlab.methods.blockwise.stage import StageJob, Worker, stage_groups
from kdlab.papers.pipe_bd.block_cost import Profile, StageCosts
from kdlab.papers.pipe_bd.execution_plan import NoPlan, programme
from kdlab.papers.pipe_bd.meetings import DeviceTimes, device_took, sharing_of
from kdlab.papers.pipe_bd.stages import Plan
from kdlab.supervision.process_groups import from_all
from kdlab.train.recipe import Recipe
from kdlab.train.step import TrainStep

LoadViews = Callable[[int, int, int], Tensor]
_STEPS = 6  # that count, one turn of a supernet at least
_WARM_UP = 2


@dataclass(frozen=True, slots=True)
class OnCopies:
    """Runs plans on one device; the students' weights stay as they are."""

    rank: int  # of this device
    cutting: Cutting
    recipe: Recipe  # of the students' optimisers
    norm: Literal["sync", "local"]  # `sync` has batch norms of a shared stage meet
    load: LoadViews  # the normalised views of a step's rows [start, stop)
    alive: Callable[[], None] = lambda: None  # called before each step

    @property
    def counted(self) -> int:
        """Number of timed steps after the warm-up, the same on all devices."""
        return max(_STEPS, paths_of(self.cutting.student).turn)

    @contextmanager
    def worker(self, plan: Plan) -> Iterator[Worker | None]:
        """Yield a worker, or None where the plan leaves this rank idle; all ranks must enter."""
        groups = stage_groups([plan])
        if self.rank not in plan.devices:
            yield None
            return
        stage = plan.stages[plan.stage_of(self.rank)]
        taught = [self.cutting.pairs[b] for b in stage.blocks]
        copied = [replace(p, student=copy.deepcopy(p.student)) for p in taught]
        paths = paths_of(nn.ModuleList([pair.student for pair in copied]))

        def before(step: int) -> None:
            self.alive()
            paths.choose(step)

        job = StageJob(
            pairs=copied,
            train_steps=[TrainStep(self.recipe, pair.student) for pair in copied],
            load=self.load,
            schedule=before,
            norm=self.norm,
        )
        yield Worker(plan, self.rank, job, groups, self.cutting.shapes[stage.first])
        for group in groups.values():
            dist.destroy_process_group(group)


def step_s(plan: Plan, copies: OnCopies) -> float:
    """Time a step of this plan on its slowest device, in seconds; all ranks must call this."""
    took = 0.0
    with copies.worker(plan) as worker:
        if worker is not None:
            begin = 0.0
            for step in worker.advance(_WARM_UP + copies.counted):
                if step == _WARM_UP - 1:
                    begin = _now(worker)
            took = (_now(worker) - begin) / copies.counted
    return max(from_all(took, float))


def _now(worker: Worker) -> float:
    """Return the time in seconds, once a GPU has finished its queue."""
    if worker.memory.type == "cuda":
        torch.cuda.synchronize(worker.memory)
    return time.monotonic()


def profiled_together(
    on: OnCopies,
    sizes: Sequence[int],
    *,
    steps: int,
    max_s: float,
    memory: tuple[float, ...] | None = None,
    shares: bool = True,
) -> Profile:
    """Profile the blocks on all ranks at the same time, as in training; all must call this.

    `sizes` are the rows of an epoch's batches, `memory` is in bytes of each device. The cost of
    sharing is measured where a plan `shares` a stage. `steps` and `max_s` as in `profiled`.
    """
    rows, paths, pairs = sizes[0], paths_of(on.cutting.student), on.cutting.pairs
    views, batch = on.load(0, 0, rows), on.recipe.batch
    widths = [w for w in feasible_rows(batch, dist.get_world_size()) if w <= rows]
    measure = partial(profiled, recipe=on.recipe, alive=on.alive, paths=paths)
    dist.barrier()
    blocks = measure(pairs, views, widths, steps=steps, max_s=max_s)
    load_s = planning.loading_s(lambda step: on.load(step, 0, sizes[step]), len(sizes))
    profile = planning.gathered(blocks, views.device, load_s)
    if not shares:
        return profile
    limited = replace(profile, memory_bytes=memory)
    costs = StageCosts(limited, rows, sync_norms=on.norm == "sync")
    same = replace(on, load=lambda step, start, stop: views[start:stop])
    return replace(profile, sharing=measured_sharing(costs, same))


def measured_sharing(costs: StageCosts, copies: OnCopies) -> float:
    """Measure a factor for the profile's meeting times; every rank must call this.

    `costs` are of all devices and of as many rows as `copies` loads.

    Returns:
        The factor; 1 for a single device, for fewer than two rows each, and where a device's
        memory does not hold all blocks.
    """
    if costs.devices < 2 or costs.batch < 2 * costs.devices:
        return 1.0
    try:
        (plan,) = programme("ir", costs).plans
    except NoPlan:
        return 1.0  # then no plan shares all blocks
    with copies.worker(plan) as worker:
        assert worker is not None  # IR uses all devices
        worker.exact = True
        worker.run(_WARM_UP + copies.counted)
        spans = [span for span in worker.spans if span.step >= _WARM_UP]
        took = from_all(device_took(copies.rank, spans), DeviceTimes)
    return sharing_of(plan.stages[0], costs, took) or 1.0
