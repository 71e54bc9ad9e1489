"""Costs of serving a student, costs of faults, and the limits of one machine.

Its parts, all of them unless `--only` names some:

    served         served_over_memory: against the same loop with batches and labels from
                   memory, in slices; served_over_n_training: step by step against the loop
                   without a teacher.
                   Emulated teachers take no processor time, so these show the reader, the
                   wires and the shared memory alone.
    real_teacher   a teacher that computes on the other core (real_teacher.py)
    scale          flow control and elasticity with up to two hundred teachers, real and simulated,
                   and unlike ones that slow down, hang and are lost, near and far (pools.py);
                   614 teachers, 32 students (scale.py)
    faults         what kills, stops and joins cost; 200 of them in one run (faults.py)
"""

from collections.abc import Collection
from typing import Literal

import torch

from benchmarks import faults, pools, real_teacher, scale
from benchmarks.harness import of_parts, quiet
from benchmarks.scene import Scene
from benchmarks.slices import (
    BUFFER,
    SLICE_MS,
    compare,
    ratios,
    step_by_step,
    worst_of,
)
from benchmarks.students import ImageCase, calibrated, samples_of
from kdlab.cluster.served import Served
from kdlab.report.figures import EmitLine, Figure, Report, at, figure
from kdlab.soft_labels.none import NoTeacher
from kdlab.soft_labels.remembered import Remembered
from kdlab.soft_labels.source import SourceSpec

CASES = (
    ImageCase(32, 40, 5),
    ImageCase(32, 64, 80),
    ImageCase(224, 4, 5),
    ImageCase(224, 16, 80),
)
_WHO = ("student", "reader")
WAYS: tuple[Literal["reference", "value_uint8"], ...] = ("reference", "value_uint8")


def measure(repeats: int = 8, say: EmitLine = quiet, only: Collection[str] = ()) -> Report:
    """All figures, or those of some parts; `repeats` rounds of slices for each ratio."""
    torch.set_num_threads(1)
    parts = {
        "served": lambda: served(repeats, say),
        "real_teacher": lambda: real_teacher.measure(repeats, say),
        "scale": lambda: [*pools.measure(say), *scale.measure(say)],
        "faults": lambda: faults.measure(say),
    }
    return of_parts("edl_dist", parts, only)


def served(rounds: int, say: EmitLine) -> list[Figure]:
    """Measure the four cases; for each size of image the worse step counts."""
    each: list[Figure] = []
    for case in CASES:
        each += _case(case, rounds, say)
    worst = [
        worst_of(each, f"{base}/{way}/{size}", min)
        for base in ("served_over_memory", "served_over_n_training")
        for way in WAYS
        for size in sorted({case.size for case in CASES})
    ]
    for name in (
        "volume_over_ut_max",
        *(f"{who}_cpu_ms_per_batch/reference" for who in _WHO),
    ):
        worst.append(worst_of(each, name, max))
    return worst + each


def _case(case: ImageCase, rounds: int, say: EmitLine) -> list[Figure]:
    samples = samples_of(case)
    spec, rate = calibrated(case, samples)
    steps, ut = max(6, round(SLICE_MS / case.step_ms)), BUFFER * case.batch
    sources: dict[str, SourceSpec] = {"n_training": NoTeacher(), "memory": Remembered()}
    sources |= {way: Served(lt=12 * case.batch, ut=ut, inputs=way) for way in WAYS}
    with Scene(samples) as scene:
        scene.emulated(teachers=8, t_t=rate)
        variants = {
            name: scene.training(name, spec, source, 2 * rate)
            for name, source in sources.items()
        }
        every = list(variants.values())
        compare(every[1:], rounds=rounds, steps=steps, warm_up=BUFFER + 8, say=say)
        over = {"memory": {w: ratios(variants[w], variants["memory"]) for w in WAYS}}
        step_by_step(every, rounds=rounds, steps=2 * steps)
        over["n_training"] = {w: ratios(variants[w], variants["n_training"]) for w in WAYS}
        figures = list[Figure]()
        for way in WAYS:
            run = variants[way]
            per_step_ms = 1000 / run.steps
            volume = run.source.figures()["volume_max"] / ut
            figures += at(
                f"{way}/{case.name}",
                *(
                    figure(f"served_over_{base}", o[way], "ratio")
                    for base, o in over.items()
                ),
                figure("student_cpu_ms_per_batch", per_step_ms * run.source_cpu_s, "ms"),
                figure("reader_cpu_ms_per_batch", per_step_ms * run.helper_cpu_s, "ms"),
                figure("volume_over_ut_max", volume, "ratio"),
            )
        return figures
