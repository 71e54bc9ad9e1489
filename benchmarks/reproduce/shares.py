"""A table's ratio of rates, on this machine: a real student, emulated teachers.

The papers' machines are not here, but what Table 2 and 3 are about is: how much of its own
rate a student keeps when so many teachers, each so much slower or faster than it is, feed it.
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
    """So many for one student.

    each: samples/s of one, of the student's own without a teacher.
    """

    teachers: Annotated[int, Range(ge=1, le=24)]
    each: Annotated[float, POSITIVE]


@register("reproduce/shares")
@dataclass(frozen=True, kw_only=True)
class Shares(MeasurementSpec):
    """What of its N-training rate a served student has, by case.

    cases: by the names of the rows.
    repeats: of each, N-training before and after it.
    """

    cases: Mapping[str, Teachers]
    repeats: Annotated[int, Range(ge=1)] = 3

    def measure(self, folder: Path, say: EmitLine) -> Measured:
        torch.set_num_threads(1)
        samples = samples_of(_CASE)
        spec, _ = calibrated(_CASE, samples)
        found: dict[str, list[float]] = {}
        with Scene(samples) as beside:
            alone = beside.training("alone", spec, NoTeacher())
            alone.advance(_WARM_UP)
            for name, case in self.cases.items():
                rate = _CASE.batch / seconds_of(alone, _ALONE)
                with Scene(samples) as scene:
                    scene.emulated(teachers=case.teachers, t_t=case.each * rate)
                    found[name] = [
                        share_of(
                            alone,
                            _ALONE,
                            partial(_served, case, scene, spec, f"{name}/{k}", rate),
                        )
                        for k in range(self.repeats)
                    ]
                shown = ", ".join(f"{ratio:.3f}" for ratio in found[name])
                say(f"{name}: {case.teachers} teachers of {case.each:.3g} each: {shown}")
        return Measured(values=found)


def _served(case: Teachers, scene: Scene, spec: PatchNet, name: str, rate: float) -> float:
    """Seconds of a step.

    The reader is a new one and has nothing gathered: what teachers that are a little
    too slow are ahead with would last for a thousand steps.
    """
    # What is in flight counts, and every teacher needs some batches there.
    ut = max(BUFFER, 4 * case.teachers) * _CASE.batch
    served = scene.training(name, spec, Served(lt=ut * 3 // 4, ut=ut), rate)
    with closing(served.source):
        served.advance(_WARM_UP)
        steps = round(_SERVED * min(1.0, case.teachers * case.each))
        return seconds_of(served, max(40, steps))
