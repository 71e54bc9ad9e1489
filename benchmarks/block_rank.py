"""One device of `kdlab bench pipe_bd`: all variants alive at once, advanced in turns.

All ranks do the same slices in the same order (A B C C B A in each round), and a slice is
timed from a barrier to a barrier. So a variant's time is that of its slowest device, and
noise of the machine meets all variants alike. The pipelines stay full between slices.
"""

import copy
import math
import resource
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from statistics import fmean
from typing import Literal, get_args

import psutil
import torch
import torch.distributed as dist
from torch import nn

from benchmarks.block_workloads import Name, Workload, workload
from benchmarks.harness import in_turns, timed
from kdlab.data.samples import PlannedSamples
from kdlab.methods.blockwise.cutting import Cutting
from kdlab.methods.blockwise.loader import Loader
from kdlab.methods.blockwise.on_copies import OnCopies, profiled_together
from kdlab.methods.blockwise.pairs import BlockPair
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
from kdlab.supervision.children import announce
from kdlab.supervision.process_groups import of_all
from kdlab.train.step import TrainStep

Variant = Literal["dp", "ls", "tr", "tr_dpu", "tr_dpu_ahd", "tr_ir", "ideal"]
VARIANTS: tuple[Variant, ...] = get_args(Variant)
_FOREVER = 1_000_000
_AGAIN = 15  # steps of the profile in each round, or whole turns of about so many


@dataclass(frozen=True, slots=True, kw_only=True)
class SlicesOfRanks:
    """What all devices are told alike: `rounds` of slices of so many `steps`."""

    workload: Name
    world: int
    meet_at: str = ""
    device: str
    batch: int
    profile_s: float  # at most for the profile
    variants: tuple[Variant, ...] = VARIANTS  # to be timed
    rounds: int = 1
    steps: int
    warm_up: int = 0  # steps before, not timed

    def costs(self, profile: Profile) -> StageCosts:
        of = workload(self.workload)
        return StageCosts(profile, self.batch, lead=of.lead, sync_norms=of.norm == "sync")


@dataclass(frozen=True, slots=True)
class SliceTimes:
    """What one device found."""

    seconds: dict[Variant, list[float]]  # of a step of each variant, in each round
    predicted: dict[Variant, list[float]]  # the same by the planner
    parts: dict[Variant, dict[str, float]]  # seconds of a step by part, of each variant
    bound_over_dp: float  # how many times DP the planner's bound is
    programmes: dict[Variant, ExecutionPlan]  # what each variant carried out


@dataclass(slots=True)
class Running:
    """One variant on this device: its workers, in step with each other."""

    workers: list[Worker]
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


@dataclass(frozen=True, slots=True)
class _Cut:
    """A workload on one device: its blocks, and its data."""

    of: Workload
    cutting: Cutting
    samples: PlannedSamples
    rank: int
    device: torch.device

    def loader(self) -> Loader:
        loader = Loader(self.samples, self.cutting.student, self.device)
        loader.begin(0, 0)
        return loader

    def profile(self, batch: int, *, steps: int, max_s: float) -> Profile:
        """Measured by all ranks at the same time, as a run does."""
        loader, recipe = self.loader(), replace(self.of.recipe, batch=batch)
        on = OnCopies(self.rank, self.cutting, recipe, self.of.norm, loader)
        sizes = [len(ids) for ids in loader.ids]
        profile = profiled_together(on, sizes, steps=steps, max_s=max_s)
        loader.close()
        return profile


def running(what: ExecutionPlan, own: _Cut) -> Running:
    """A variant that has not begun, with students of its own."""
    cutting, rank = own.cutting, own.rank
    pairs = [BlockPair(p.teacher, copy.deepcopy(p.student), p.loss) for p in cutting.pairs]
    groups, relay = stage_groups(what.plans), of_all()
    workers = []
    for plan in what.of(rank):
        stage = plan.stages[plan.stage_of(rank)]
        loader = own.loader()
        loader.ids = loader.ids[:1] * _FOREVER  # references; every step is a whole batch
        taught = pairs[stage.first : stage.stop]
        job = StageJob(
            pairs=taught,
            train_steps=[TrainStep(own.of.recipe, p.student) for p in taught],
            load=loader,
            prefix=[p.teacher for p in pairs[: stage.first]] if stage.from_data else (),
            schedule=partial(draw_paths, nn.ModuleList(pair.student for pair in taught)),
            relay=relay,
            norm=own.of.norm,
        )
        workers.append(Worker(plan, rank, job, groups, cutting.shapes[stage.first]))
    together = zip(*(w.advance(_FOREVER) for w in workers), strict=True)
    stages = what.of(rank)[0]
    behind = len(stages.stages) - 1 - stages.stage_of(rank) if stages.decoupled else 0
    behind *= max(1, stages.lead // 2)  # half full, as on average
    return Running(workers, iter(together), behind)


@contextmanager
def _joined(told: SlicesOfRanks, rank: int) -> Iterator[_Cut]:
    """What a rank is about, with the others in one group."""
    keep_freed_memory()
    torch.set_num_threads(1)
    dist.init_process_group("gloo", told.meet_at, rank=rank, world_size=told.world)
    of, device = workload(told.workload), torch.device(told.device)
    yield _Cut(of, of.cutting(device), of.samples(told.batch), rank, device)
    dist.barrier()
    dist.destroy_process_group()


def timed_slices(told: SlicesOfRanks, rank: int) -> SliceTimes:
    """Seconds per step of every variant in every round, and what they are made of."""
    with _joined(told, rank) as own:
        first = told.costs(own.profile(told.batch, steps=100, max_s=told.profile_s))
        names = told.variants
        programmes = {name: made(name, first) for name in names}
        alike = same_plan(programmes)
        say = partial(_say, rank)
        for line in plan_lines(programmes, alike):
            say(line)
        order = [name for name in names if alike[name] == name]  # that are timed
        variants = {name: running(programmes[name], own) for name in order}
        for one in variants.values():
            # Filled: each stage finds its next input there when a slice begins.
            one.advance(told.warm_up + one.ahead)
            for worker in one.workers:
                worker.spans.clear()
        works = {n: partial(_between, v, told.steps) for n, v in variants.items()}
        predicted: dict[Variant, list[float]] = {name: [] for name in names}
        found: dict[Variant, list[float]] = {name: [] for name in order}
        for _ in range(told.rounds):
            # Beside the steps it speaks of: a host drifts by tens of percent within minutes.
            now = told.costs(own.profile(told.batch, steps=_AGAIN, max_s=math.inf))
            for name in names:
                if name != "ideal":
                    predicted[name].append(predicted_s(programmes[name], now))
            for which, seconds in in_turns(works, 2, say, "s per step").items():
                found[which].append(fmean(seconds))
        return SliceTimes(
            seconds={name: found[alike[name]] for name in names},
            predicted=predicted,
            parts={name: _parts(variants[alike[name]]) for name in names},
            bound_over_dp=first.data_parallel_s() / first.ideal_s(),
            programmes=programmes,
        )


def _say(rank: int, line: str) -> None:
    if rank == 0:
        announce(say=line)


def _between(one: Running, steps: int) -> float:
    """Seconds of a step, from a barrier to a barrier."""
    dist.barrier()

    def work() -> None:
        one.advance(steps)
        dist.barrier()

    return timed(work) / steps


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


def memory_mb(told: SlicesOfRanks, rank: int, programme: ExecutionPlan) -> float:
    """Megabytes that this device needs in some steps of one variant.

    Its own blocks' weights, and what the steps add to a process that has built the models:
    optimiser, gradients, activations, buffers.
    """
    with _joined(told, rank) as own:
        one = running(programme, own)
        weights = {
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
        one.advance(told.steps)
        dist.barrier()
        if own.device.type == "cuda":
            return torch.cuda.max_memory_allocated() / 1e6
        peak = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return (peak - before + sum(weights.values())) / 1e6
