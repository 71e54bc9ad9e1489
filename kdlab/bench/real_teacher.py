"""Served by a teacher that computes, on the other core.

A neighbour that computes slows this core too (shared caches, clocks, a host's quota), and
that is not the reader's doing. So the bar is N-training beside a process that runs the
same model and keeps its core as busy as teacher and reader keep it; what that alone costs
is printed as the control, and how busy that is too. A served step also computes the soft
loss, which N-training does not have: soft labels from memory beside the same neighbour
show what is left of the difference once both compute it.
"""

import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from statistics import median

import psutil
import torch
from safetensors.torch import save_file

from kdlab.bench.neighbour import NeighbourConfig
from kdlab.bench.slices import (
    BUFFER,
    SLICE_MS,
    TimedTraining,
    compare,
    cpu_seconds,
    ratios,
    worst_of,
)
from kdlab.bench.students import (
    ImageCase,
    calibrated,
    context,
    deployment_for,
    loop_of,
    samples_of,
)
from kdlab.cluster.deployment import DeployedModel, Deployment
from kdlab.cluster.local_pool import LocalPool
from kdlab.cluster.served import Served
from kdlab.config.seal import file_sha256
from kdlab.data.samples import PlannedSamples
from kdlab.models.model import ModelSpec, Normalised
from kdlab.models.patch_net import PatchNet
from kdlab.report.figures import Figure, figure
from kdlab.soft_labels.in_process import InProcess
from kdlab.soft_labels.none import NoTeacher
from kdlab.soft_labels.remembered import Remembered
from kdlab.soft_labels.source import LoadedTeacher, SoftLabelSource, SourceContext
from kdlab.supervision.children import Child
from kdlab.train.teacher import frozen

Beside = Callable[[], AbstractContextManager[None]]
CASES = (ImageCase(32, 40, 5), ImageCase(32, 64, 80))


def measure(rounds: int, say: Callable[[str], None]) -> list[Figure]:
    figures: list[Figure] = []
    for case in CASES:
        figures += _case(case, rounds, say)
    worst = worst_of(figures, "gain_over_online_of_limit", min, ">= 0.95")
    return [worst, *figures]


def _case(case: ImageCase, rounds: int, say: Callable[[str], None]) -> list[Figure]:
    samples = samples_of(case)
    spec, rate = calibrated(case, samples)
    teacher_spec = PatchNet(patch=spec.patch, depth=max(1, round(1.2 * spec.depth)))
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        model = frozen(teacher_spec.build(samples.classes, samples.data.shape[0]))
        deployment = deployment_of_model(teacher_spec, model, samples, folder)
        pool = LocalPool(teachers=1).start(deployment, folder / "pool")
        stack.callback(pool.close)
        pool.wait()
        teacher_s = _seconds(model, samples)

        def built(name: str) -> SourceContext:
            return context(samples, folder / name, pool, rate, name)

        served = Served(lt=12 * case.batch, ut=BUFFER * case.batch).build(built("served"))
        stack.callback(served.close)
        online = InProcess().build(_online(model, samples, folder))
        steps = max(6, round(SLICE_MS / case.step_ms))

        def timed(name: str, source: SoftLabelSource, beside: Beside) -> TimedTraining:
            loop = loop_of(spec, samples, folder / name)
            return TimedTraining(name, loop, source, beside)

        served_v = timed("served", served, nullcontext)
        helpers = [psutil.Process(pid) for pid in (served.reader.pid, pool.teachers[0].pid)]
        spent, share = _helpers_spend(served_v, helpers, steps)
        neighbour = _neighbour(teacher_spec, samples, share, folder)
        stack.callback(neighbour.stop)
        stack.callback(neighbour.process.send_signal, signal.SIGCONT)  # or it could not end

        def beside() -> AbstractContextManager[None]:
            return going(neighbour.pid)

        variants = {
            "n_training": timed(
                "n_training", NoTeacher().build(built("alone")), nullcontext
            ),
            "busy": timed("busy", NoTeacher().build(built("busy")), beside),
            "memory": timed("memory", Remembered().build(built("memory")), beside),
            "served": served_v,
            "online": timed("online", online, nullcontext),
        }
        compare(
            list(variants.values()),
            rounds=rounds,
            steps=steps,
            warm_up=BUFFER + 10,
            say=lambda line: say(f"real teacher {case.name} {line}"),
        )
    label = f"{case.step_ms:g}ms"
    return [
        *_figures(variants, teacher_s, label),
        figure(f"helpers_share_of_a_core/{label}", [share], "cores"),
        *(
            figure(f"{who}_cpu_ms_per_batch/real_teacher/{label}", [1000 * seconds], "ms")
            for who, seconds in zip(("reader", "teacher"), spent, strict=True)
        ),
    ]


def _figures(v: dict[str, TimedTraining], teacher_s: float, label: str) -> list[Figure]:
    served, busy = v["served"], v["busy"]
    step_s = 1 / median(busy.rates)
    limit = (step_s + teacher_s) / max(step_s, teacher_s)
    over_online = ratios(served, v["online"])
    gains = [gain / limit for gain in over_online]
    over_busy, over_memory = ratios(served, busy), ratios(served, v["memory"])
    beside, soft_loss = ratios(busy, v["n_training"]), ratios(v["memory"], busy)
    name = f"real_teacher/{label}"
    return [
        figure(f"served_over_n_training/{name}", over_busy, "ratio", ">= 0.97"),
        figure(f"control/busy_neighbour/{label}", beside, "ratio"),
        figure(f"control/soft_loss/{label}", soft_loss, "ratio"),
        figure(f"served_over_memory/{name}", over_memory, "ratio"),
        figure(f"gain_over_online_of_limit/{label}", gains, "ratio"),
        figure(f"gain_over_online/{label}", over_online, "times"),
        figure(f"teacher_ms/{label}", [1000 * teacher_s], "ms"),
    ]


def _helpers_spend(
    served: TimedTraining, helpers: list[psutil.Process], steps: int
) -> tuple[list[float], float]:
    """Processor seconds of each per batch, and their share of one core together."""
    served.advance(BUFFER + 10)
    before, begin = [cpu_seconds(p) for p in helpers], time.perf_counter()
    served.advance(4 * steps)
    wall = time.perf_counter() - begin
    spent = [cpu_seconds(p) - b for p, b in zip(helpers, before, strict=True)]
    return [s / (4 * steps) for s in spent], min(0.98, max(0.01, sum(spent) / wall))


@contextmanager
def going(pid: int) -> Iterator[None]:
    """Let a stopped process go on for a while."""
    os.kill(pid, signal.SIGCONT)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGSTOP)


def _neighbour(
    spec: PatchNet, samples: PlannedSamples, share: float, folder: Path
) -> Child:
    config = NeighbourConfig(
        patch=spec.patch,
        depth=spec.depth,
        classes=samples.classes,
        shape=samples.data.shape,
        batch=samples.plan.batch,
        share=share,
    )
    child = Child(
        "kdlab.bench.neighbour",
        config,
        folder / "neighbour.log",
        environment={"OMP_NUM_THREADS": "1"},
    )
    child.answer(60.0)
    os.kill(child.pid, signal.SIGSTOP)
    return child


def deployment_of_model(
    spec: ModelSpec, model: Normalised, samples: PlannedSamples, folder: Path
) -> Deployment:
    weights = folder / "teacher.safetensors"
    save_file(model.net.state_dict(), weights)
    member = DeployedModel(
        model=spec.to_dict(),
        weights=str(weights),
        sha256=file_sha256(weights),
        weight=1.0,
    )
    return replace(
        deployment_for(samples),
        members=(member,),
        teacher=member.sha256[:16],
        by_reference=True,
    )


def _online(model: Normalised, samples: PlannedSamples, folder: Path) -> SourceContext:
    infer = torch.inference_mode()(lambda views: model(views).float())
    return SourceContext(
        samples=samples,
        student="online",
        folder=folder,
        load_teacher=lambda: LoadedTeacher(infer, "bench"),
        start={"epoch": 0, "done": []},
    )


@torch.inference_mode()
def _seconds(model: Normalised, samples: PlannedSamples) -> float:
    """Seconds of one batch, in this process: the median of some."""
    views = torch.from_numpy(samples.views(samples.batches(0)[0], 0))
    found = []
    for _ in range(30):
        begin = time.perf_counter()
        model(views)
        found.append(time.perf_counter() - begin)
    return median(found)
