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
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from statistics import median

import psutil
import torch

from benchmarks.scene import Scene, infer_with
from benchmarks.slices import (
    BUFFER,
    SLICE_MS,
    TimedTraining,
    compare,
    cpu_seconds,
    ratios,
    worst_of,
)
from benchmarks.students import ImageCase, calibrated, samples_of
from kdlab.cluster.served import Served
from kdlab.data.samples import PlannedSamples
from kdlab.models.memory import keep_freed_memory
from kdlab.models.model import Normalised
from kdlab.models.patch_net import PatchNet
from kdlab.report.figures import EmitLine, Figure, at, figure
from kdlab.soft_labels.in_process import InProcess
from kdlab.soft_labels.none import NoTeacher
from kdlab.soft_labels.remembered import Remembered
from kdlab.supervision.children import Child, announce, lower_priority

CASES = (ImageCase(32, 40, 5), ImageCase(32, 64, 80))


def measure(rounds: int, say: EmitLine) -> list[Figure]:
    figures: list[Figure] = []
    for case in CASES:
        figures += _case(case, rounds, say)
    return [worst_of(figures, "gain_over_online_of_limit", min), *figures]


def _case(case: ImageCase, rounds: int, say: EmitLine) -> list[Figure]:
    samples = samples_of(case)
    spec, rate = calibrated(case, samples)
    teacher_spec = PatchNet(patch=spec.patch, depth=max(1, round(1.2 * spec.depth)))
    steps = max(6, round(SLICE_MS / case.step_ms))
    with Scene(samples) as scene:
        model = scene.model(teacher_spec)
        pool = scene.local(teacher_spec, model, teachers=1)
        teacher_s = _seconds(model, samples)
        source = Served(lt=12 * case.batch, ut=BUFFER * case.batch)
        served = scene.training("served", spec, source, rate)
        assert served.helper is not None
        helpers = [served.helper, psutil.Process(pool.machines.children[0].pid)]
        spent, share = _helpers_spend(served, helpers, steps)
        neighbour = _neighbour(scene, teacher_spec, share)

        def beside() -> AbstractContextManager[None]:
            return going(neighbour.pid)

        every = [
            scene.training("n_training", spec, NoTeacher()),
            scene.training("busy", spec, NoTeacher(), beside=beside),
            scene.training("memory", spec, Remembered(), beside=beside),
            served,
            scene.training("online", spec, InProcess(), infer=infer_with(model)),
        ]
        compare(
            every,
            rounds=rounds,
            steps=steps,
            warm_up=BUFFER + 10,
            say=lambda line: say(f"real teacher {case.name} {line}"),
        )
    label = f"{case.step_ms:g}ms"
    return [
        *_figures({variant.name: variant for variant in every}, teacher_s, label),
        figure(f"helpers_share_of_a_core/{label}", share, "cores"),
        *(
            figure(f"{who}_cpu_ms_per_batch/real_teacher/{label}", 1000 * seconds, "ms")
            for who, seconds in zip(("reader", "teacher"), spent, strict=True)
        ),
    ]


def _figures(v: dict[str, TimedTraining], teacher_s: float, label: str) -> list[Figure]:
    served, busy = v["served"], v["busy"]
    step_s = 1 / median(busy.rates)
    limit = (step_s + teacher_s) / max(step_s, teacher_s)
    over_online = ratios(served, v["online"])
    over_memory, soft_loss = ratios(served, v["memory"]), ratios(v["memory"], busy)
    return at(
        label,
        figure("served_over_n_training/real_teacher", ratios(served, busy), "ratio"),
        figure("control/busy_neighbour", ratios(busy, v["n_training"]), "ratio"),
        figure("control/soft_loss", soft_loss, "ratio"),
        figure("served_over_memory/real_teacher", over_memory, "ratio"),
        figure(
            "gain_over_online_of_limit", [gain / limit for gain in over_online], "ratio"
        ),
    )


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
    """Continue a stopped process, for the time of the block."""
    os.kill(pid, signal.SIGCONT)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGSTOP)


def _neighbour(scene: Scene, spec: PatchNet, share: float) -> Child:
    """Start a process that keeps a core busy; it is stopped until `going` continues it."""
    samples = scene.samples
    of_batch = {"shape": samples.data.shape, "batch": samples.plan.batch}
    of_model = {"patch": spec.patch, "depth": spec.depth, "classes": samples.classes}
    child = scene.calling(kept_busy, of_model | of_batch | {"share": share})
    child.answer(60.0)
    os.kill(child.pid, signal.SIGSTOP)
    scene.callback(child.process.send_signal, signal.SIGCONT)  # or it could not end
    return child


@torch.inference_mode()
def kept_busy(
    patch: int,
    depth: int,
    classes: int,
    shape: tuple[int, int, int],
    batch: int,
    share: float,
) -> None:
    """Keep this core busy for a share of the time, for ever, with batches of a PatchNet.

    shape: of a view, (C, H, W).
    """
    lower_priority()  # as the teacher does
    keep_freed_memory()
    torch.set_num_threads(1)
    model = PatchNet(patch=patch, depth=depth).build(classes, shape[0]).eval()
    views = torch.zeros((batch, *shape), dtype=torch.uint8)
    model(views)
    announce(ready=True)
    while True:
        begin = time.thread_time()
        model(views)
        time.sleep((1 / share - 1) * (time.thread_time() - begin))  # the share itself


@torch.inference_mode()
def _seconds(model: Normalised, samples: PlannedSamples) -> float:
    """Processor seconds of one batch, in this process: the median of some."""
    views = torch.from_numpy(samples.views(samples.batches(0)[0], 0))
    seconds = list[float]()
    while len(seconds) < 4 or (len(seconds) < 30 and sum(seconds) < 2 * SLICE_MS / 1000):
        begin = time.process_time()
        model(views)
        seconds.append(time.process_time() - begin)
    return median(seconds)
