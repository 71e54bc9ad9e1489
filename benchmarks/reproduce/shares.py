"""Ratios of a table's rates on this machine, with a real student and emulated teachers.

Without the papers' machines one can still measure what Tables 2 and 3 are about: the share of
its rate without a teacher that a student keeps, by number and speed of the teachers that serve it.
An emulated teacher answers after the time that a real one would take, and takes no processor
time; everything between it and the student is real.
"""

from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

import torch

from benchmarks.reproduce.measurement import Measured, MeasurementSpec
from benchmarks.scene import Scene
from benchmarks.slices import BUFFER, seconds_of, share_of
from benchmarks.students import ImageCase, calibrated, samples_of
from kdlab.cluster.served import Served
from kdlab.config import Range, register
from kdlab.config.spec import POSITIVE, Spec
from kdlab.models.patch_net import PatchNet
from kdlab.report.figures import EmitLine
from kdlab.soft_labels.none import NoTeacher

_CASE = ImageCase(size=32, batch=64, step_ms=20)
_WARM_UP, _ALONE, _SERVED = 6, 80, 240  # steps


@dataclass(frozen=True, kw_only=True)
class Teachers(Spec):
    """Teachers of one student.

    each: rate of one teacher, over the student's rate without a teacher.
    """

    teachers: Annotated[int, Range(ge=1, le=24)]
    each: Annotated[float, POSITIVE]


@register("reproduce/shares")
@dataclass(frozen=True, kw_only=True)
class Shares(MeasurementSpec):
    """Rate of a served student over its rate in N-training, by case.

    cases: teachers, by the names of the rows.
    repeats: of each case, with N-training before and after it.
    """

    cases: Mapping[str, Teachers]
    repeats: Annotated[int, Range(ge=1)] = 3

    def measure(self, folder: Path, say: EmitLine) -> Measured:
        torch.set_num_threads(1)
        samples = samples_of(_CASE)
        spec, _ = calibrated(_CASE, samples)
        ratios: dict[str, list[float]] = {}
        with Scene(samples) as beside:
            baseline = beside.training("alone", spec, NoTeacher())
            baseline.advance(_WARM_UP)
            for name, case in self.cases.items():
                rate = _CASE.batch / seconds_of(baseline, _ALONE)
                with Scene(samples) as scene:
                    scene.emulated(teachers=case.teachers, t_t=case.each * rate)
                    ratios[name] = [
                        share_of(
                            baseline,
                            _ALONE,
                            partial(_served, case, scene, spec, f"{name}/{k}", rate),
                        )
                        for k in range(self.repeats)
                    ]
                shown = ", ".join(f"{ratio:.3f}" for ratio in ratios[name])
                say(f"{name}: {case.teachers} teachers of {case.each:.3g} each: {shown}")
        return Measured(values=ratios)


def _served(case: Teachers, scene: Scene, spec: PatchNet, name: str, rate: float) -> float:
    """Return the seconds of a step.

    The reader is new and its buffer empty: labels that were buffered before would last for a
    thousand steps with teachers that are only a little too slow.
    """
    # Samples in flight count to `ut`, and each teacher needs some batches in flight.
    ut = max(BUFFER, 4 * case.teachers) * _CASE.batch
    served = scene.training(name, spec, Served(lt=ut * 3 // 4, ut=ut), rate)
    with closing(served.source):
        served.advance(_WARM_UP)
        steps = round(_SERVED * min(1.0, case.teachers * case.each))
        return seconds_of(served, max(40, steps))
