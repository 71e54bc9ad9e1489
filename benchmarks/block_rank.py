"""One device of `kdlab bench pipe_bd`: all variants alive at once, advanced in turns.

All ranks do the same slices in the same order (A B C C B A in each round), all begin together, and
a variant's time is that of its slowest device. So noise of the machine meets all variants alike,
and rounds in which other processes had some of the cores do not count. The pipelines stay full
between slices, and all variants of a supernet draw the same paths.
"""

import copy
import math
import resource
import time
from collections.abc import Iterator, Mapping, Sequence
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
from kdlab.supervision.process_groups import from_all, from_first, group_of_all
from kdlab.train.step import TrainStep

Variant = Literal["dp", "ls", "tr", "tr_dpu", "tr_dpu_ahd", "tr_ir", "ideal"]
VARIANTS: tuple[Variant, ...] = get_args(Variant)
_FOREVER = 1_000_000
_AGAIN = 7  # steps of the profile in each round, or whole turns of about so many
_FEWEST = 2  # rounds, however long they take
_QUIET = 0.1  # cores that other processes may have in a round that counts


@dataclass(frozen=True, slots=True, kw_only=True)
class SlicesOfRanks:
    """Settings that are the same for all devices: `rounds` of slices of `steps` each."""

    workload: Name
    world: int
    meet_at: str = ""
    device: str
    batch: int
    profile_s: float  # of the profile, at most
    variants: tuple[Variant, ...] = VARIANTS  # to be timed
    rounds: int = 1  # that nobody disturbs, where there is time for them
    budget_s: float = math.inf  # of all rounds; two are made anyway
    steps: int
    warm_up: int = 0  # steps before, not timed
    predicts: bool = True  # profile in every round, and hold the planner's prediction to it

    def costs(self, profile: Profile) -> StageCosts:
        of = workload(self.workload)
        return StageCosts(profile, self.batch, lead=of.lead, sync_norms=of.norm == "sync")


@dataclass(frozen=True, slots=True)
class SliceTimes:
    """Times that one device measured."""

    seconds: dict[Variant, list[float]]  # of a step of each variant, in each round
    predicted: dict[Variant, list[float]]  # the same by the planner
    parts: dict[Variant, dict[str, float]]  # seconds of a step by part, of each variant
    bound_over_dp: list[float]  # how many times DP the planner's bound is, in each round
    programmes: dict[Variant, ExecutionPlan]  # what each variant carried out
    others: list[float]  # cores that other processes had in each round
    disturbed: (
        int  # rounds in which they had too much; these count where there are no others
    )


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


def plan_of(name: Variant, costs: StageCosts) -> ExecutionPlan:
    """Return the plan that a variant of Fig. 4 carries out."""
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
        """Measure the blocks on all ranks at the same time, as a run does."""
        loader, recipe = self.loader(), replace(self.of.recipe, batch=batch)
        on = OnCopies(self.rank, self.cutting, recipe, self.of.norm, loader)
        sizes = [len(ids) for ids in loader.ids]
        profile = profiled_together(on, sizes, steps=steps, max_s=max_s)
        loader.close()
        return profile


def running(programme: ExecutionPlan, cut: _Cut) -> Running:
    """Return a variant that has not begun, with its own copies of the students."""
    cutting, rank = cut.cutting, cut.rank
    pairs = [BlockPair(p.teacher, copy.deepcopy(p.student), p.loss) for p in cutting.pairs]
    groups, relay = stage_groups(programme.plans), group_of_all()
    workers = []
    for plan in programme.plans_of(rank):
        stage = plan.stages[plan.stage_of(rank)]
        loader = cut.loader()
        loader.ids = loader.ids[:1] * _FOREVER  # references; every step is a whole batch
        taught = pairs[stage.first : stage.stop]
        job = StageJob(
            pairs=taught,
            train_steps=[TrainStep(cut.of.recipe, p.student) for p in taught],
            load=loader,
            prefix=[p.teacher for p in pairs[: stage.first]] if stage.from_data else (),
            schedule=partial(draw_paths, nn.ModuleList(pair.student for pair in taught)),
            relay=relay,
            norm=cut.of.norm,
        )
        workers.append(Worker(plan, rank, job, groups, cutting.shapes[stage.first]))
    advances = zip(*(w.advance(_FOREVER) for w in workers), strict=True)
    stages = programme.plans_of(rank)[0]
    behind = len(stages.stages) - 1 - stages.stage_of(rank) if stages.decoupled else 0
    behind *= max(1, stages.lead // 2)  # half full, as on average
    return Running(workers, iter(advances), behind)


@contextmanager
def _joined(job: SlicesOfRanks, rank: int) -> Iterator[_Cut]:
    """Join the group of all ranks, and build the blocks and data of this one."""
    keep_freed_memory()
    torch.set_num_threads(1)
    dist.init_process_group("gloo", job.meet_at, rank=rank, world_size=job.world)
    of, device = workload(job.workload), torch.device(job.device)
    yield _Cut(of, of.cutting(device), of.samples(job.batch), rank, device)
    dist.barrier()
    dist.destroy_process_group()


@dataclass(frozen=True, slots=True)
class _Round:
    """Seconds of a step of each variant, forth and back, with the profile of the same minute."""

    seconds: dict[Variant, float]  # of the slower device
    predicted: dict[Variant, float]
    bound_over_dp: float
    others: float  # cores that processes of others had


def timed_slices(job: SlicesOfRanks, rank: int) -> SliceTimes:
    """Measure seconds per step of every variant in every round, whole and by part."""
    with _joined(job, rank) as cut:
        _does(rank, "profiling the blocks")
        first = job.costs(cut.profile(job.batch, steps=100, max_s=job.profile_s))
        names = job.variants
        programmes = {name: plan_of(name, first) for name in names}
        alike = same_plan(programmes)
        for line in plan_lines(programmes, alike):
            _say(rank, line)
        order = [name for name in names if alike[name] == name]  # that are timed
        variants = {name: running(programmes[name], cut) for name in order}
        for name, variant in variants.items():
            _does(rank, f"filling {name}")
            # Each stage finds its next input there when a slice begins.
            variant.advance(job.warm_up + variant.ahead)
            for worker in variant.workers:
                worker.spans.clear()
        rounds: list[_Round] = []
        begin, spare = time.monotonic(), max(0, (psutil.cpu_count() or 1) - job.world)
        while from_first(_goes_on(job, rounds, time.monotonic() - begin, spare), bool):
            rounds.append(_round(job, cut, variants, programmes, first))
        counted = quiet_rounds(rounds, spare)
        return SliceTimes(
            seconds={name: [r.seconds[alike[name]] for r in counted] for name in names},
            predicted={n: [r.predicted[n] for r in counted] for n in names if n != "ideal"},
            parts={name: _parts(variants[alike[name]]) for name in names},
            bound_over_dp=[r.bound_over_dp for r in counted],
            programmes=programmes,
            others=[r.others for r in counted],
            disturbed=sum(r.others > _QUIET + spare for r in rounds),
        )


def _goes_on(
    job: SlicesOfRanks, rounds: Sequence[_Round], spent_s: float, spare: float
) -> bool:
    """Return True while too few rounds were quiet and there is time for another one."""
    count = len(rounds)
    if count < min(_FEWEST, job.rounds):
        return True
    enough = sum(r.others <= _QUIET + spare for r in rounds) >= job.rounds
    late = count == 2 * job.rounds or spent_s * (count + 1) / count > job.budget_s
    return not enough and not late


def quiet_rounds(rounds: Sequence[_Round], spare: float) -> list[_Round]:
    """Return the rounds in which other processes had almost none of these cores; at least two.

    The time of other processes alone decides, never the figures of a round.

    Args:
        rounds: all that were measured.
        spare: cores that this benchmark does not need.
    """
    quiet = [r for r in rounds if r.others <= _QUIET + spare]
    if len(quiet) >= min(_FEWEST, len(rounds)):
        return quiet
    return sorted(rounds, key=lambda r: r.others)[:_FEWEST]


def _round(
    job: SlicesOfRanks,
    cut: _Cut,
    variants: Mapping[Variant, Running],
    programmes: Mapping[Variant, ExecutionPlan],
    now: StageCosts,
) -> _Round:
    begin, busy, used = time.monotonic(), _busy_s(), time.process_time()
    if job.predicts:
        _does(cut.rank, "profiling beside the steps")
        # In the same round as the steps: a host drifts by tens of percent within minutes.
        now = job.costs(cut.profile(job.batch, steps=_AGAIN, max_s=math.inf))
    works = {n: partial(_slice, n, v, job.steps, cut.rank) for n, v in variants.items()}
    turns = in_turns(works, 2, partial(_say, cut.rank), "s per step")
    means = {name: fmean(seconds) for name, seconds in turns.items()}
    each = from_all(means, dict[Variant, float])
    busy, wall = _busy_s() - busy, time.monotonic() - begin
    ours = sum(from_all(time.process_time() - used, float))
    return _Round(
        {name: max(device[name] for device in each) for name in means},
        {n: predicted_s(p, now) for n, p in programmes.items() if n != "ideal"},
        now.data_parallel_s() / now.ideal_s(),
        from_first(max(0.0, busy - ours) / wall, float),
    )


def _busy_s() -> float:
    """Seconds of all cores that some process had, or another machine on this host."""
    took = psutil.cpu_times()
    return float(took.user + took.nice + took.system + getattr(took, "steal", 0.0))


def _say(rank: int, line: str) -> None:
    if rank == 0:
        announce(say=line)


def _does(rank: int, what: str) -> None:
    if rank == 0:
        announce(doing=what)


def _slice(name: str, variant: Running, steps: int, rank: int) -> float:
    """Measure seconds of a step of this device, from a barrier until its own part is done.

    Waiting for inputs counts, waiting for slower devices at the end does not: in a run this one
    would continue. The slowest device of a round decides.
    """
    dist.barrier()
    _does(rank, f"{steps} steps of {name}")

    def work() -> None:
        variant.advance(steps)
        if torch.cuda.is_available():
            torch.cuda.synchronize()

    seconds = timed(work)
    dist.barrier()
    return seconds / steps


def same_plan(programmes: Mapping[Variant, ExecutionPlan]) -> dict[Variant, Variant]:
    """Return for each variant the first one with the same plan: only that is timed."""
    return {
        name: next(n for n, other in programmes.items() if other.plans == plan.plans)
        for name, plan in programmes.items()
    }


def plan_lines(
    programmes: Mapping[Variant, ExecutionPlan], alike: Mapping[Variant, Variant]
) -> Iterator[str]:
    """A line for each pipeline: its stages, or whose plan it is."""
    for name, plan in programmes.items():
        if plan.name not in RELAYED or name == "ideal":
            continue
        stages = (
            f"{_in_words(s.blocks)} on {', '.join(map(str, s.devices))}"
            for s in plan.plans[0].stages
        )
        same = f"the plan of {alike[name]}, timed once: " if alike[name] != name else ""
        yield f"{name}: {same}{'; '.join(stages)}"


def _in_words(blocks: range) -> str:
    single = len(blocks) == 1
    return f"block {blocks[0]}" if single else f"blocks {blocks[0]} to {blocks[-1]}"


def _parts(variant: Running) -> dict[str, float]:
    """Sum up the seconds per step of this device by part, waiting included."""
    spans = [span for worker in variant.workers for span in worker.spans]
    steps = max(1, len({span.step for span in spans}))
    seconds: dict[str, float] = {}
    for span in spans:
        seconds[span.part] = seconds.get(span.part, 0.0) + (span.end - span.begin) / steps
    return seconds


def memory_mb(job: SlicesOfRanks, rank: int, programme: ExecutionPlan) -> float:
    """Measure the megabytes that this device needs in some steps of one variant.

    Its own blocks' weights, and what the steps add to a process that has built the models:
    optimiser, gradients, activations, buffers.
    """
    with _joined(job, rank) as cut:
        variant = running(programme, cut)
        weights = {
            id(p): p.numel() * p.element_size()
            for worker in variant.workers
            for module in (
                *worker.job.prefix,
                *(pair.teacher for pair in worker.job.pairs),
                *worker.students,
            )
            for p in (*module.parameters(), *module.buffers())
        }
        before = psutil.Process().memory_info().rss
        _does(rank, "taking some steps")
        variant.advance(job.steps)
        dist.barrier()
        if cut.device.type == "cuda":
            return torch.cuda.max_memory_allocated() / 1e6
        peak = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return (peak - before + sum(weights.values())) / 1e6
