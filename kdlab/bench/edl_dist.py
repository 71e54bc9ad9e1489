"""What it costs a student to be served, what faults cost, and how far one machine goes.

Its parts, all of them unless `--only` names some:

    served         served_over_memory: against the same loop with batches and labels from
                   memory; served_over_n_training: against the loop without a teacher.
                   Emulated teachers take no processor time, so these show the reader, the
                   wires and the shared memory alone.
    real_teacher   a teacher that computes on the other core (real_teacher.py)
    scale          flow control and elasticity with up to a hundred unlike teachers, real and
                   simulated (at_scale.py); 614 teachers, 32 students (scale.py)
    faults         what kills, stops and joins cost; 200 of them in one run (faults.py)
"""

import tempfile
from collections.abc import Callable, Collection
from contextlib import ExitStack
from pathlib import Path
from typing import Literal

import psutil
import torch

from kdlab.bench import at_scale, faults, real_teacher, scale
from kdlab.bench.parts import measured
from kdlab.bench.slices import BUFFER, SLICE_MS, TimedTraining, compare, ratios, worst_of
from kdlab.bench.students import (
    ImageCase,
    calibrated,
    context,
    emulated,
    loop_of,
    samples_of,
)
from kdlab.cluster.served import Served, ServedSource
from kdlab.report.figures import Figure, Report, figure
from kdlab.soft_labels.none import NoTeacher
from kdlab.soft_labels.remembered import Remembered
from kdlab.soft_labels.source import SourceSpec

CASES = (
    ImageCase(32, 40, 5),
    ImageCase(32, 64, 80),
    ImageCase(224, 4, 5),
    ImageCase(224, 16, 80),
)
WAYS: tuple[Literal["reference", "value_uint8"], ...] = ("reference", "value_uint8")
GOALS = {"reference": ">= 0.97", "value_uint8": ">= 0.95"}


def measure(
    repeats: int = 8,
    say: Callable[[str], None] = lambda line: None,
    only: Collection[str] = (),
) -> Report:
    """All figures, or those of some parts; `repeats` rounds of slices for each ratio."""
    torch.set_num_threads(1)
    parts = {
        "served": lambda: served(repeats, say),
        "real_teacher": lambda: real_teacher.measure(repeats, say),
        "scale": lambda: [*at_scale.measure(say), *scale.measure(say)],
        "faults": lambda: faults.measure(say),
    }
    return measured("edl_dist", parts, only)


def served(rounds: int, say: Callable[[str], None]) -> list[Figure]:
    """The four cases; for each size of image the worse step counts."""
    each: list[Figure] = []
    for case in CASES:
        each += _case(case, rounds, say)
    worst = []
    for base in ("served_over_memory", "served_over_n_training"):
        for way in WAYS:
            for size in sorted({case.size for case in CASES}):
                goal = GOALS[way] if base == "served_over_memory" else None
                worst.append(worst_of(each, f"{base}/{way}/{size}", min, goal))
    for name, goal in (
        ("volume_over_ut_max", "<= 1"),
        ("student_cpu_ms_per_batch/reference", "<= 0.5"),
        ("reader_cpu_ms_per_batch/reference", None),
    ):
        worst.append(worst_of(each, name, max, goal))
    return worst + each


def _case(case: ImageCase, rounds: int, say: Callable[[str], None]) -> list[Figure]:
    samples = samples_of(case)
    spec, rate = calibrated(case, samples)
    steps = max(6, round(SLICE_MS / case.step_ms))
    with ExitStack() as stack:
        pool = stack.enter_context(emulated(samples, teachers=8, t_t=rate))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        sources: dict[str, SourceSpec] = {"n_training": NoTeacher(), "memory": Remembered()}
        for way in WAYS:
            sources[way] = Served(lt=12 * case.batch, ut=BUFFER * case.batch, inputs=way)
        variants = {}
        for name, source in sources.items():
            own = folder / name
            built = source.build(context(samples, own, pool, 2 * rate, name))
            stack.callback(built.close)
            reader = None
            if isinstance(built, ServedSource):
                reader = psutil.Process(built.reader.pid)
            loop = loop_of(spec, samples, own)
            variants[name] = TimedTraining(name, loop, built, helper=reader)
        compare(
            list(variants.values()),
            rounds=rounds,
            steps=steps,
            warm_up=BUFFER + 8,
            say=say,
        )
        ut = BUFFER * case.batch
        made = []
        for way in WAYS:
            variant = variants[way]
            for base, label in (("memory", "memory"), ("n_training", "n_training")):
                values = ratios(variant, variants[base])
                made.append(
                    figure(f"served_over_{label}/{way}/{case.name}", values, "ratio")
                )
            spent = 1000 * variant.source_cpu_s / variant.steps
            made.append(_cpu_figure("student", way, case, spent))
            waited = 1000 * variant.source_s / variant.steps
            made.append(figure(f"student_ms_in_source/{way}/{case.name}", [waited], "ms"))
            spent = 1000 * variant.helper_cpu_s / variant.steps
            made.append(_cpu_figure("reader", way, case, spent))
            volume = variant.source.figures()["volume_max"] / ut
            made.append(
                figure(f"volume_over_ut_max/{way}/{case.name}", [volume], "ratio", "<= 1")
            )
        step = [1000 / rate for rate in variants["memory"].rates]
        return [*made, figure(f"step_ms/{case.name}", step, "ms")]


def _cpu_figure(who: str, way: str, case: ImageCase, milliseconds: float) -> Figure:
    goal = "<= 0.5" if (who, way) == ("student", "reference") else None
    name = f"{who}_cpu_ms_per_batch/{way}/{case.name}"
    return figure(name, [milliseconds], "ms", goal)
