"""Steps of a plan before the training, on copies of the students: what they take is measured.

A link's latency says what a meeting takes when everybody is there. In a shared stage devices meet
in every batch norm, forward and backward, and none comes at the same moment: with many norms that
is most of what sharing costs. So all devices train all blocks together for some steps (the plan
of IR); what that takes beyond their own work is compared with what the links say. The plan that
is found then is carried out for some steps beside that of TR, and the better one trains.
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
    """One device of plans that are tried; their students stay as they are.

    Attributes:
        rank: this device.
        cutting: all blocks.
        recipe: of the students' optimisers.
        norm: `sync` has batch norms of a shared stage meet.
        load: the normalised views of a step's rows [start, stop).
        alive: called before each step.
    """

    rank: int
    cutting: Cutting
    recipe: Recipe
    norm: Literal["sync", "local"]
    load: LoadViews
    alive: Callable[[], None] = lambda: None

    @property
    def counted(self) -> int:
        """Steps behind those that warm up; the same on all devices."""
        paths = paths_of(self.cutting.student)
        return max(_STEPS, paths.turn if paths else 1)

    @contextmanager
    def worker(self, plan: Plan) -> Iterator[Worker | None]:
        """Every rank must enter this at the same time; None where the plan leaves it idle."""
        groups = stage_groups([plan])
        if self.rank not in plan.devices:
            yield None
            return
        stage = plan.stages[plan.stage_of(self.rank)]
        taught = [self.cutting.pairs[b] for b in stage.blocks]
        own = [replace(p, student=copy.deepcopy(p.student)) for p in taught]
        paths = paths_of(nn.ModuleList([pair.student for pair in own]))

        def before(step: int) -> None:
            self.alive()
            if paths is not None:
                paths.choose(step)

        job = StageJob(
            pairs=own,
            train_steps=[TrainStep(self.recipe, pair.student) for pair in own],
            load=self.load,
            schedule=before,
            norm=self.norm,
        )
        yield Worker(plan, self.rank, job, groups, self.cutting.shapes[stage.first])
        for group in groups.values():
            dist.destroy_process_group(group)


def step_s(plan: Plan, copies: OnCopies) -> float:
    """Seconds of a step of this plan, by its slowest device; every rank must call this."""
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
    """When a GPU has done what it was told."""
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
    """The profile of all ranks, which measure at the same time, as they train; all must call this.

    `sizes` are the rows of an epoch's batches, `memory` is in bytes of each device. What a shared
    stage costs is measured where a plan `shares` one. `steps` and `max_s` are those of `profiled`.
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
    """Factor for what the profile says of meetings; every rank must call this.

    Args:
        costs: of the profile of all devices; of as many rows as `copies` loads.
        copies: of this device.

    Returns:
        1 where nothing can be told: a device alone, fewer rows than two for each, or too little
        memory for all blocks on each.
    """
    if costs.devices < 2 or costs.batch < 2 * costs.devices:
        return 1.0
    try:
        (plan,) = programme("ir", costs).plans
    except NoPlan:
        return 1.0  # nobody will share all blocks then
    with copies.worker(plan) as worker:
        assert worker is not None  # of IR nobody is left out
        worker.exact = True
        worker.run(_WARM_UP + copies.counted)
        spans = [span for span in worker.spans if span.step >= _WARM_UP]
        took = from_all(device_took(copies.rank, spans), DeviceTimes)
    return sharing_of(plan.stages[0], costs, took) or 1.0
