"""`kdlab bench pipe_bd`: Pipe-BD, its ablations and both baselines, side by side.

    compression, nas   every variant of Fig. 4 for a workload, what its steps are made of
               (Fig. 2), and how far the planner's prediction is off
    stages     the same for a workload whose blocks no pipeline of two devices balances
    batches    the speed-up over DP at four batch sizes (Fig. 6)
    memory     what a device needs in each variant (Fig. 7)
    planner    seconds for 64 blocks on 64 devices of one to eight kinds, and how far from the bound

*Ideal* is measured too: every device runs all blocks with the whole batch, while the others do
the same; that time divided by the number of devices is a step without waiting or sharing.
Variants with the same plan are timed once, and a line says so. The rounds of each part have a time
limit, and a batch size has one round, so that all take less than ten minutes on two quiet cores.
"""

import random
import time
from collections.abc import Callable, Collection
from dataclasses import replace
from statistics import fmean
from typing import TypeVar

import torch

from benchmarks.block_rank import (
    VARIANTS,
    SlicesOfRanks,
    SliceTimes,
    Variant,
    memory_mb,
    timed_slices,
)
from benchmarks.block_workloads import Name
from benchmarks.harness import Scratch, of_parts, quiet
from kdlab.papers.pipe_bd.block_cost import Block, DeviceLink, Profile, StageCosts
from kdlab.papers.pipe_bd.hybrid_plan import best_plan
from kdlab.report.figures import EmitLine, Figure, Report, at, figure, over

T = TypeVar("T")
Known = dict[Name, SliceTimes]  # of workloads whose variants were timed already

WORKLOADS: tuple[Name, ...] = ("compression", "nas")
DEVICES = 2
BATCH = 32
BATCHES = (8, 16, 32, 64)
PROFILE_S = 12.0
# Steps of a slice: at least as many as the lead. A supernet's steps differ by their paths, and in
# short slices one device always has more work than the other.
SLICES: dict[Name, int] = {"compression": 2, "nas": 8, "stages": 4}
ROUNDS_S: dict[Name, float] = {"compression": 50.0, "nas": 75.0, "stages": 30.0}
_BATCH_S = 10.0  # for the rounds of a batch size
_PATIENCE_S = 1800.0


def measure(repeats: int = 6, say: EmitLine = quiet, only: Collection[str] = ()) -> Report:
    """All figures, or those of some parts; `repeats` rounds for each ratio."""
    known: Known = {}
    parts = {
        "compression": lambda: speed("compression", repeats, say, known),
        "nas": lambda: speed("nas", repeats, say, known),
        "stages": lambda: speed("stages", repeats, say, known),
        "batches": lambda: batches(max(2, repeats // 2) if only else 1, say, known),
        "memory": lambda: memory(say, known),
        "planner": lambda: planner(say),
    }
    return of_parts("pipe_bd", parts, only)


def speed(workload: Name, rounds: int, say: EmitLine, known: Known) -> list[Figure]:
    job = replace(_job(workload), rounds=rounds, warm_up=2, budget_s=ROUNDS_S[workload])
    times = _ranks(timed_slices, job, say)
    known[workload] = times[0]
    return _speed_figures(workload, times)


def _speed_figures(workload: str, times: list[SliceTimes]) -> list[Figure]:
    seconds = times[0].seconds  # of the slower device: the same at every rank
    pipe = seconds["tr_dpu_ahd"]
    ideal = [s / DEVICES for s in seconds["ideal"]]

    over_dp = over(seconds["dp"], pipe)
    # Over tr_dpu, a plan that the search could have chosen: about as fast at least. Where a
    # pipeline cannot be balanced, the search must share blocks.
    figures = at(
        workload,
        figure("of_ideal", over(ideal, pipe), "ratio"),
        figure("over_tr_dpu", over(seconds["tr_dpu"], pipe), "times"),
        figure("over_dp", over_dp, "times"),
        figure("over_ls", over(seconds["ls"], pipe), "times"),
        figure("others_cores", times[0].others, "cores"),
        figure("disturbed", times[0].disturbed, "rounds"),
        figure("over_dp_of_bound", over(over_dp, times[0].bound_over_dp), "ratio"),
    )
    for name in ("tr_dpu_ahd", "dp", "ls", "tr", "tr_dpu", "tr_ir"):
        # The planner's step time over the measured one: 1 is right. It has a short profile of
        # the same round, so this tests the cost model and not the host.
        predicted = over(times[0].predicted[name], seconds[name])
        label = workload if name == "tr_dpu_ahd" else f"{workload}/{name}"
        figures.append(figure(f"predicted_over_measured/{label}", predicted, "ratio"))
    for name in VARIANTS:
        took = seconds[name] if name != "ideal" else ideal
        figures.append(figure(f"step_ms/{workload}/{name}", [1e3 * s for s in took], "ms"))
        if name not in ("dp", "ideal"):
            label = f"speed_over_dp/{workload}/{name}"
            figures.append(figure(label, over(seconds["dp"], took), "times"))
        for part in sorted({part for one in times for part in one.parts[name]}):
            each = [1e3 * one.parts[name].get(part, 0.0) for one in times]
            figures.append(figure(f"part_ms/{workload}/{name}/{part}", each, "ms"))
    return figures


def batches(rounds: int, say: EmitLine, known: Known) -> list[Figure]:
    figures = []
    for workload in WORKLOADS:
        for batch in BATCHES:
            job = replace(
                _job(workload),
                variants=("dp", "tr_dpu_ahd"),
                batch=batch,
                warm_up=1,
                rounds=rounds,
                budget_s=_BATCH_S,
                profile_s=PROFILE_S / 3,
                predicts=False,
            )
            before = known.get(workload) if batch == BATCH else None
            seconds = (before or _ranks(timed_slices, job, say)[0]).seconds
            times = over(seconds["dp"], seconds["tr_dpu_ahd"])
            label = f"speed_over_dp_at_batch/{workload}/tr_dpu_ahd/{batch}"
            figures.append(figure(label, times, "times"))
    return figures


def memory(say: EmitLine, known: Known) -> list[Figure]:
    """Measure each variant in new processes, since a process does not give memory back."""
    figures: list[Figure] = []
    for workload in WORKLOADS:
        job = replace(_job(workload), variants=("dp", "tr_dpu_ahd"), steps=1)
        times = known.get(workload) or _ranks(timed_slices, job, say)[0]
        mb: dict[Variant, list[float]] = {}
        for name in job.variants:
            programme, few = times.programmes[name], replace(job, steps=4)
            mb[name] = _ranks(memory_mb, few, say, programme=programme)
            figures.append(figure(f"memory_mb/{workload}/{name}", mb[name], "MB"))
            say(f"memory {workload} {name}: {', '.join(f'{n:.0f} MB' for n in mb[name])}")
        for label, of in (("memory_over_dp", max), ("mean_memory_over_dp", fmean)):
            ratio = of(mb["tr_dpu_ahd"]) / of(mb["dp"])
            figures.append(figure(f"{label}/{workload}", ratio, "ratio"))
    return figures


def planner(say: EmitLine) -> list[Figure]:
    """Plan 64 blocks of random costs on 64 devices, and compare the plan with its bound."""
    cases: tuple[tuple[str, int, float, bool], ...] = (  # kinds, overlap, decoupled
        ("64x64", 1, 1.0, True),
        ("64x64/exposed", 1, 0.5, True),
        ("64x64/two_kinds/barrier", 2, 1.0, False),
        ("64x64/four_kinds", 4, 1.0, True),
        ("64x64/eight_kinds", 8, 1.0, True),
    )
    figures = []
    for label, kinds, overlap, decoupled in cases:
        took, over_bound = [], []
        for seed in range(5):
            costs = _random_costs(random.Random(seed), kinds, overlap)
            begin = time.perf_counter()
            result = best_plan(costs, decoupled=decoupled)
            took.append(time.perf_counter() - begin)
            over_bound.append(result.step_s / result.bound_s)
        seconds = ", ".join(f"{s:.2f}" for s in took)
        say(f"planner {label}: {seconds} s, at most {max(over_bound):.3f} of the bound")
        figures.append(figure(f"plan_seconds/{label}", took, "s"))
        figures.append(figure(f"plan_over_bound/{label}", over_bound, "ratio"))
    return figures


def _random_costs(chance: random.Random, kinds: int, overlap: float) -> StageCosts:
    """Blocks whose times differ by kind of device, a slower kind not equally at each of them."""
    base_s = [chance.uniform(1.0, 10.0) for _ in range(64)]

    def block(batch_s: float) -> Block:
        times = {r: batch_s * (0.1 + 0.9 * r / 256) for r in (1, 16, 64, 128, 256)}
        return Block(
            teacher_s=times,
            student_s={r: 2 * s for r, s in times.items()},
            output_bytes=4e3,
            gradient_bytes=1e6,
        )

    types = {
        f"kind {k}": [block(s * (1 + k / 2) * chance.uniform(0.8, 1.25)) for s in base_s]
        for k in range(kinds)
    }
    devices = tuple(f"kind {d * kinds // 64}" for d in range(64))
    link = DeviceLink(bytes_per_s=1e9, overlap=overlap)
    return StageCosts(Profile(types=types, devices=devices, link=link), 256)


def _job(workload: Name) -> SlicesOfRanks:
    """Return the job that all ranks share."""
    return SlicesOfRanks(
        workload=workload,
        world=DEVICES,
        device="cuda" if torch.cuda.is_available() else "cpu",
        batch=BATCH,
        profile_s=PROFILE_S,
        steps=SLICES[workload],
    )


def _ranks(
    function: Callable[..., T], job: SlicesOfRanks, say: EmitLine, **more: object
) -> list[T]:
    """Call a function in a process for each rank and return their results."""
    with Scratch() as scratch:
        job = replace(job, meet_at=f"file://{scratch.folder}/meet")
        each = [{"job": job, "rank": rank, **more} for rank in range(DEVICES)]
        return scratch.results(
            function,
            each,
            at_once=DEVICES,
            patience_s=_PATIENCE_S,
            say=lambda line: say(f"{job.workload} {line}"),
        )
