"""`kdlab bench heterogeneous`: EDL-Dist's Tables 2 and 3 on the hardware of this machine.

MobileNetV3-small learns from ResNet-50, images of 224 pixels, batch 64. First the student has 1,
2, 4, 8 and 16 processor cores and the teacher the GPU; then the student has the GPU, and 8, 12
and 16 teachers a core each. Both need a GPU and cores to spare; what a machine does not have is
left out and said. `device=cpu size=32` tries it without.
"""

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Literal

import torch

from benchmarks.harness import in_turns, quiet, report
from benchmarks.scene import Scene, here
from benchmarks.slices import TimedTraining
from benchmarks.students import ENDLESS, EPOCHS, loop_of
from kdlab.cluster.served import Served
from kdlab.config import Range
from kdlab.config.check import construct
from kdlab.config.load import from_dict
from kdlab.config.spec import Spec
from kdlab.data.samples import planned
from kdlab.data.synthetic import Synthetic
from kdlab.errors import BadInput
from kdlab.models.model import ModelSpec
from kdlab.report.figures import Figure, Report, Say, at, figure, over
from kdlab.soft_labels.in_process import InProcess
from kdlab.soft_labels.none import NoTeacher
from kdlab.soft_labels.source import SourceSpec

_TIMED_S = 8.0
Device = Literal["cuda", "cpu"]
_CORES = Annotated[int, Range(ge=1)]


@dataclass(frozen=True, kw_only=True)
class Side(Spec):
    """A model, and on how many processor cores it is in its table."""

    model: ModelSpec
    cores: tuple[_CORES, ...]


@dataclass(frozen=True, kw_only=True)
class Settings(Spec):
    """Settings of the benchmark.

    size: pixels of a side.
    device: of the teacher in Table 2, and of the student in Table 3.
    student: of Table 2, on so many cores.
    teacher: of Table 3, so many on a core each.
    """

    student: Side
    teacher: Side
    device: Device = "cuda"
    size: Annotated[int, Range(ge=8)] = 224
    batch: Annotated[int, Range(ge=2)] = 64


_DEFAULT = {
    "student": {
        "model": {"type": "torchvision/mobilenet_v3_small"},
        "cores": [1, 2, 4, 8, 16],
    },
    "teacher": {"model": {"type": "torchvision/resnet50"}, "cores": [8, 12, 16]},
}


def measure(repeats: int = 3, say: Say = quiet, overrides: Sequence[str] = ()) -> Report:
    """Samples/s of N-training, Online and EDL-Dist for each row of both tables.

    Raises:
        BadInput: there is no GPU, and none of the settings says to do without.
    """
    settings = construct(Settings, from_dict(_DEFAULT, "bench heterogeneous", overrides))
    if settings.device == "cuda" and not torch.cuda.is_available():
        raise BadInput(
            "bench heterogeneous puts the teacher on a GPU, and torch sees none here. "
            "device=cpu tries it without: then both sides share the cores."
        )
    here = os.cpu_count() or 1
    figures: list[Figure] = []
    for cores in settings.student.cores:
        if cores > here:
            say(f"student on {cores} cores: this machine has {here}, left out")
            continue
        row = _Row(settings=settings, student="cpu", threads=cores, pool=settings.device)
        figures += row.figures(f"student_cores/{cores}", repeats, say)
    for cores in settings.teacher.cores:
        if cores >= here:
            say(f"{cores} teachers on a core each: this machine has {here}, left out")
            continue
        own = settings.device  # the student has what the teacher had
        row = _Row(settings=settings, student=own, threads=1, pool="cpu", teachers=cores)
        figures += row.figures(f"teacher_cores/{cores}", repeats, say)
    return report("heterogeneous", figures)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    """One row of a table: where the student is, and its teachers."""

    settings: Settings
    student: Device
    threads: int
    pool: Device
    teachers: int = 1

    def figures(self, label: str, repeats: int, say: Say) -> list[Figure]:
        """All three trainings are alive at once and take turns."""
        own = self.settings
        data = Synthetic(samples=20 * own.batch, size=own.size)
        samples = planned(
            data.load(), data.to_dict(), batch=own.batch, seed=0, epochs=EPOCHS
        )
        with Scene(samples) as scene:
            steps = {"edl_dist": max(16, 4 * self.teachers) + 2}
            works = {
                name: partial(self._rate, variant, steps.get(name, 4))
                for name, variant in self._variants(scene).items()
            }
            say(label)
            found = in_turns(works, repeats, say, "samples/s")
        edl_dist = found["edl_dist"]
        return [
            *(
                figure(f"samples_per_second/{name}/{label}", rates, "samples/s")
                for name, rates in found.items()
            ),
            *at(
                label,
                figure(
                    "edl_dist_over_n_training", over(edl_dist, found["n_training"]), "ratio"
                ),
                figure("edl_dist_over_online", over(edl_dist, found["online"]), "ratio"),
            ),
        ]

    def _variants(self, scene: Scene) -> dict[str, TimedTraining]:
        own = self.settings
        torch.manual_seed(1)
        model = scene.model(own.teacher.model)
        scene.local(
            own.teacher.model, model, teachers=self.teachers, threads=1, device=self.pool
        )
        online = here(model.to(self.student))  # the student's own device
        recipe = replace(ENDLESS, threads=self.threads, device=self.student)
        probe = loop_of(
            own.student.model, scene.samples, scene.folder / "probe", None, recipe
        )
        rate = probe.measure_rate(1.0)
        # What is in flight counts, and every teacher needs some batches there.
        ut = max(16, 4 * self.teachers) * own.batch
        sources: dict[str, SourceSpec] = {
            "n_training": NoTeacher(),
            "online": InProcess(),
            "edl_dist": Served(lt=ut * 3 // 4, ut=ut),
        }
        return {
            name: scene.training(
                name, own.student.model, source, rate, infer=online, recipe=recipe
            )
            for name, source in sources.items()
        }

    def _rate(self, variant: TimedTraining, warm_up: int) -> float:
        """Samples/s; `warm_up` steps before use up what gathered in buffers meanwhile."""
        variant.advance(warm_up)
        _settle()
        begin, steps = time.perf_counter(), 0
        # Teachers answer in waves: many of them, so that it does not matter where one falls.
        while steps < warm_up or time.perf_counter() - begin < _TIMED_S:
            variant.advance(1)
            steps += 1
        _settle()
        return self.settings.batch * steps / (time.perf_counter() - begin)


def _settle() -> None:
    """Steps that a GPU has not done yet are not counted as done."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
