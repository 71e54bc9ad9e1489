"""One device of `kdlab bench pipe_bd`: all variants alive at once, advanced in turns.

All ranks do the same slices in the same order (A B C C B A in each round), and a slice is
timed from a barrier to a barrier. So a variant's time is that of its slowest device, and
noise of the machine meets all variants alike. The pipelines stay full between slices.
"""

import copy
import math
import resource
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, get_args

import psutil
import torch
import torch.distributed as dist
from torch import nn

from benchmarks.block_workloads import Name, Workload, workload
from kdlab.codec import plain, typed
from kdlab.data.samples import PlannedSamples
from kdlab.methods.blockwise import planning
from kdlab.methods.blockwise.cutting import Cutting
from kdlab.methods.blockwise.loader import Loader
from kdlab.methods.blockwise.on_copies import OnCopies, measured_sharing
from kdlab.methods.blockwise.pairs import BlockPair
from kdlab.methods.blockwise.profiling import Paths, feasible_rows, paths_of, profiled
from kdlab.methods.blockwise.stage import StageJob, Worker, stage_groups
from kdlab.models.memory import keep_freed_memory
from kdlab.models.proxyless import draw_paths
from kdlab.papers.pipe_bd.block_cost import Profile, StageCosts
from kdlab.papers.pipe_bd.execution_plan import (
    RELAYED,
    ExecutionPlan,
    PlanName,
    predicted_s,
    programme,
)
from kdlab.papers.pipe_bd.stages import Plan, Stage
from kdlab.supervision.children import announce, configured
from kdlab.supervision.process_groups import of_all
from kdlab.train.step import TrainStep

Variant = Literal["dp", "ls", "tr", "tr_dpu", "tr_dpu_ahd", "tr_ir", "ideal"]
VARIANTS: tuple[Variant, ...] = get_args(Variant)
_FOREVER = 1_000_000
_AGAIN = 15  # steps of the profile in each round, or whole turns of about so many


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockRankConfig:
    """One device's part of a measurement: `rounds` of slices of so many `steps`."""

    what: Literal["measure", "memory"]  # times of variants, or the memory that one needs
    workload: Name
    rank: int
    world: int
    meet_at: str
    device: str
    batch: int
    profile_s: float  # at most for the profile
    variants: tuple[Variant, ...] = ()  # to be timed
    rounds: int = 1
    steps: int
    warm_up: int = 0  # steps before, not timed
    lead: int = 2  # steps a stage may be ahead
    programme: Mapping[str, object] | None = (
        None  # an `ExecutionPlan`, to measure its memory
    )


@dataclass(frozen=True, slots=True)
class SliceTimes:
    """What one device found."""

    seconds: dict[Variant, list[float]]  # of a step of each variant, in each round
    predicted: dict[Variant, list[float]]  # the same by the planner
    parts: dict[Variant, dict[str, float]]  # seconds of a step by part, of each variant
    bound_over_dp: float  # how many times DP the planner's bound is
    programmes: dict[Variant, dict[str, object]]  # facts of what each variant carried out


@dataclass(slots=True)
class Running:
    """One variant on this device: its workers, in step with each other."""

    workers: list[Worker]
    loaders: list[Loader]
    steps: Iterator[object]
    ahead: int  # steps the first stages may be ahead of the last

    def advance(self, steps: int) -> None:
        for _ in range(steps):
            next(self.steps)


_PLANS: dict[Variant, PlanName] = {
    "dp": "dp",
    "ls": "ls",
    "tr": "tr",
    "tr_dpu": "tr",
    "tr_dpu_ahd": "ahd",
    "tr_ir": "ir",
}


def made(name: Variant, costs: StageCosts) -> ExecutionPlan:
    """What a variant of Fig. 4 carries out."""
    if name != "ideal":
        return programme(_PLANS[name], costs, decoupled=name != "tr")
    # Every device by itself, all blocks: the work without waiting or sharing.
    plans = tuple(
        Plan(costs.batch, (Stage(0, costs.blocks, (d,), (costs.batch,), from_data=True),))
        for d in range(costs.devices)
    )
    return ExecutionPlan("ir", plans, costs.ideal_s() * costs.devices, "each device alone")


def running(
    what: ExecutionPlan,
    of: Workload,
    cutting: Cutting,
    samples: PlannedSamples,
    rank: int,
    device: torch.device,
) -> Running:
    """A variant that has not begun, with students of its own."""
    pairs = [BlockPair(p.teacher, copy.deepcopy(p.student), p.loss) for p in cutting.pairs]
    groups, relay = stage_groups(what.plans), of_all()
    workers, loaders = [], []
    for plan in what.of(rank):
        stage = plan.stages[plan.stage_of(rank)]
        loader = Loader(samples, cutting.student, device)
        loader.begin(0, 0)
        loader.ids = loader.ids[:1] * _FOREVER  # references; every step is a whole batch
        own = pairs[stage.first : stage.stop]
        job = StageJob(
            pairs=own,
            train_steps=[TrainStep(of.recipe, p.student) for p in own],
            load=loader,
            prefix=[p.teacher for p in pairs[: stage.first]] if stage.from_data else (),
            schedule=partial(draw_paths, nn.ModuleList(pair.student for pair in own)),
            relay=relay,
            norm=of.norm,
        )
        workers.append(Worker(plan, rank, job, groups, cutting.shapes[stage.first]))
        loaders.append(loader)
    together = zip(*(w.advance(_FOREVER) for w in workers), strict=True)
    stages = what.of(rank)[0]
    behind = len(stages.stages) - 1 - stages.stage_of(rank) if stages.decoupled else 0
    behind *= max(1, stages.lead // 2)  # half full, as on average
    return Running(workers, loaders, iter(together), behind)


def profile_of(
    of: Workload,
    cutting: Cutting,
    samples: PlannedSamples,
    config: BlockRankConfig,
    *,
    steps: int = 100,
    max_s: float = math.inf,
    paths: Paths | None,
) -> Profile:
    """Measured by all ranks at the same time, as a run does."""
    device, batch = torch.device(config.device), config.batch
    loader = Loader(samples, cutting.student, device)
    loader.begin(0, 0)
    views = loader(0, 0, batch)
    dist.barrier()
    blocks = profiled(
        cutting.pairs,
        views,
        feasible_rows(batch, config.world),
        steps=steps,
        recipe=of.recipe,
        max_s=max_s,
        paths=paths,
    )
    load_s = planning.loading_s(lambda step: loader(step, 0, batch), len(loader.ids))
    loader.close()
    profile = planning.gathered(blocks, device, load_s)
    sharing = measured_sharing(
        StageCosts(profile, batch, sync_norms=of.norm == "sync"),
        OnCopies(config.rank, cutting, of.recipe, of.norm, lambda _, a, z: views[a:z]),
    )
    return replace(profile, sharing=sharing)


def measure(config: BlockRankConfig) -> SliceTimes:
    """Seconds per step of every variant in every round, and what they are made of."""
    rank, batch, steps = config.rank, config.batch, config.steps
    device = torch.device(config.device)
    of = workload(config.workload)
    cutting, samples = of.cutting(device), of.samples(batch)
    paths = paths_of(cutting.student)
    profile = profile_of(of, cutting, samples, config, max_s=config.profile_s, paths=paths)
    costs = partial(StageCosts, batch=batch, lead=config.lead, sync_norms=of.norm == "sync")
    first = costs(profile)
    names = config.variants
    programmes = {name: made(name, first) for name in names}
    alike = same_plan(programmes)
    if rank == 0:
        for line in plan_lines(programmes, alike):
            announce(say=line)
    order = [name for name in names if alike[name] == name]  # that are timed
    variants = {
        name: running(programmes[name], of, cutting, samples, rank, device)
        for name in order
    }
    predicted: dict[Variant, list[float]] = {name: [] for name in names}
    found: dict[Variant, list[float]] = {name: [] for name in order}
    for one in variants.values():
        # Filled: each stage finds its next input there when a slice begins.
        one.advance(config.warm_up + one.ahead)
        for worker in one.workers:
            worker.spans.clear()
    for number in range(config.rounds):
        # Beside the steps it speaks of: a host drifts by tens of percent within minutes.
        beside = profile_of(of, cutting, samples, config, steps=_AGAIN, paths=paths)
        now = costs(beside)
        for name in names:
            if name != "ideal":
                predicted[name].append(predicted_s(programmes[name], now))
        took = dict.fromkeys(order, 0.0)
        for name in [*order, *reversed(order)]:
            took[name] += _timed(lambda name=name: variants[name].advance(steps))  # type: ignore[misc]
        for name in order:
            found[name].append(took[name] / (2 * steps))
        if rank == 0:
            shown = ", ".join(f"{n} {1e3 * found[n][-1]:.0f}" for n in order)
            announce(say=f"round {number + 1}/{config.rounds}: ms per step: {shown}")
    return SliceTimes(
        seconds={name: found[alike[name]] for name in names},
        predicted=predicted,
        parts={name: _parts(variants[alike[name]]) for name in names},
        bound_over_dp=first.data_parallel_s() / first.ideal_s(),
        programmes={name: plain(what) for name, what in programmes.items()},
    )


def same_plan(programmes: Mapping[Variant, ExecutionPlan]) -> dict[Variant, Variant]:
    """The first variant of the same plan for each: two of one plan are one thing to time."""
    return {
        name: next(n for n, other in programmes.items() if other.plans == what.plans)
        for name, what in programmes.items()
    }


def plan_lines(
    programmes: Mapping[Variant, ExecutionPlan], alike: Mapping[Variant, Variant]
) -> Iterator[str]:
    """A line for each pipeline: its stages, or whose plan it is."""
    for name, what in programmes.items():
        if what.name not in RELAYED or name == "ideal":
            continue
        stages = (
            f"{_in_words(s.blocks)} on {', '.join(map(str, s.devices))}"
            for s in what.plans[0].stages
        )
        same = f"the plan of {alike[name]}, timed once: " if alike[name] != name else ""
        yield f"{name}: {same}{'; '.join(stages)}"


def _in_words(blocks: range) -> str:
    one = len(blocks) == 1
    return f"block {blocks[0]}" if one else f"blocks {blocks[0]} to {blocks[-1]}"


def _parts(one: Running) -> dict[str, float]:
    """Seconds per step of this device by part, waiting included."""
    spans = [span for worker in one.workers for span in worker.spans]
    steps = max(1, len({span.step for span in spans}))
    own: dict[str, float] = {}
    for span in spans:
        own[span.part] = own.get(span.part, 0.0) + (span.end - span.begin) / steps
    return own


def _timed(work: Callable[[], None]) -> float:
    dist.barrier()
    begin = time.perf_counter()
    work()
    dist.barrier()
    return time.perf_counter() - begin


def memory(config: BlockRankConfig) -> float:
    """Megabytes that this device needs in some steps of one variant.

    Its own blocks' weights, and what the steps add to a process that has built the models:
    optimiser, gradients, activations, buffers.
    """
    device = torch.device(config.device)
    of = workload(config.workload)
    cutting, samples = of.cutting(device), of.samples(config.batch)
    assert config.programme is not None
    what = typed(ExecutionPlan, config.programme)
    one = running(what, of, cutting, samples, config.rank, device)
    own = {
        id(p): p.numel() * p.element_size()
        for worker in one.workers
        for module in (
            *worker.job.prefix,
            *(pair.teacher for pair in worker.job.pairs),
            *worker.students,
        )
        for p in (*module.parameters(), *module.buffers())
    }
    before = psutil.Process().memory_info().rss
    one.advance(config.steps)
    dist.barrier()
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated() / 1e6
    peak = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return (peak - before + sum(own.values())) / 1e6


def main() -> None:
    config = configured(BlockRankConfig)
    keep_freed_memory()
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", config.meet_at, rank=config.rank, world_size=config.world
    )
    is_times = config.what == "measure"
    announce(done=plain(measure(config)) if is_times else memory(config))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
