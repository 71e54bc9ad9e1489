"""Estimate of time, memory and disk of an experiment, from some seconds of its steps."""

import math
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

import psutil

from kdlab.cluster.pool import ComputingPoolSpec, LocalTeacherCount
from kdlab.data.images import ImageData
from kdlab.errors import BadInput
from kdlab.experiment.feature_setup import row_length, teacher_taps
from kdlab.experiment.setup import head_of, network_of, networks_of
from kdlab.experiment.spec import ExperimentSpec, Member
from kdlab.report import page
from kdlab.report.table import NAMES, duration, text_table_left
from kdlab.run.rates import NetworkRates, network_rates, views_per_second
from kdlab.soft_labels.source import SourceSpec
from kdlab.train.recipe import Recipe
from kdlab.train.teacher import TeacherSpec, prepared

_STARTS_S = 4.0  # of a training: process, first steps, last evaluation
_POOL_S = 6.0  # until served teachers answer
_BASE_MB = 350  # of a process with PyTorch
_ENGINES = 4  # copies of a teacher's weights while engines are compared
_KEPT = 2  # checkpoints of a training, besides its exported weights
_VIEWS_S = 0.5
_HEAD = ("", "about", "samples/s", "bound by")


@dataclass(frozen=True, slots=True)
class StageEstimate:
    """Estimate of one training of a run."""

    name: str  # "teacher", "none/seed0"
    about: str
    seconds: float
    samples_per_second: float
    bound_by: str  # its slowest side


@dataclass(frozen=True, slots=True)
class Estimate:
    """Estimate of a run, shown as a table; in seconds, MB and samples/s."""

    stages: tuple[StageEstimate, ...]
    student: NetworkRates
    teacher: NetworkRates | None
    views_per_second: float
    memory_mb: float
    disk_mb: float
    label_bytes: int  # of a sample's soft labels; 0 without a teacher
    wire_bytes: float  # of a sample, request and answer; 0 without served teachers
    teachers_needed: int | None  # served teachers, for a student that never waits

    @property
    def seconds(self) -> float:
        return sum(stage.seconds for stage in self.stages)

    def rows(self) -> list[list[str]]:
        return [
            [
                f"{s.name}: {s.about}",
                duration(s.seconds),
                f"{s.samples_per_second:,.0f}",
                s.bound_by,
            ]
            for s in self.stages
        ]

    def facts(self) -> list[str]:
        """Return lines on time, memory, disk, speeds and bytes."""
        lines = [
            f"about {duration(self.seconds)} in all on this machine, as busy as it is now",
            f"memory about {self.memory_mb:,.0f} MB, disk about {self.disk_mb:,.0f} MB",
            f"the student trains on {self.student.trained:,.0f} samples/s, views are made at "
            f"{self.views_per_second:,.0f}",
        ]
        if self.teacher is not None:
            lines.append(
                f"the teacher answers {self.teacher.asked:,.0f} samples/s, "
                f"{self.label_bytes:,} bytes of soft labels each"
            )
        if self.wire_bytes:
            rate = self.wire_bytes * self.student.trained / 1e6
            lines.append(
                f"a sample takes {self.wire_bytes:,.0f} bytes on the wire, request and answer: "
                f"{rate:,.1f} MB/s when the student never waits"
            )
        if self.teachers_needed is not None:
            lines.append(f"{self.teachers_needed} served teachers keep up with the student")
        return lines

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"seconds": self.seconds}

    def __repr__(self) -> str:
        return "\n".join([*self.facts(), "", text_table_left(_HEAD, self.rows())])

    def _repr_html_(self) -> str:
        body = page.lines(self.facts()) + page.table(_HEAD, self.rows())
        return page.shown(page.Card("Estimate", body))


def estimate(
    spec: ExperimentSpec, say: Callable[[str], None] = lambda line: None
) -> Estimate:
    """Measure student, teacher and views for some seconds, and extrapolate.

    Raises:
        BadInput: the run has several devices or local models; their plans have the times.
    """
    if not spec.method.one_student or spec.method.has_ranks(spec):
        raise BadInput(
            f"An estimate covers one student in one process; this is "
            f"{spec.method.component} with {spec.aggregation.component}. Plans of blockwise "
            "distillation and rounds of ensembles print their times when they start; kdlab "
            "simulate predicts many machines."
        )
    say("measuring the student, the teacher and the views for some seconds")
    return _Estimator(spec, spec.data.load(say)).estimate()


def _fitting(recipe: Recipe, data: ImageData) -> Recipe:
    """A recipe to measure with: no batch has more images than the data."""
    most = max(2, min(recipe.batch, len(data.train)))
    return replace(recipe, batch=most, accumulate=1)


class _Estimator:
    def __init__(self, spec: ExperimentSpec, data: ImageData) -> None:
        self.spec, self.data = spec, data
        classes = len(data.classes)
        recipe = _fitting(spec.train, data)
        self.student = network_rates(spec.student, recipe, data.shape, classes)
        self.teacher: NetworkRates | None = None
        self.taught = any(m.source.needs_teacher != "none" for m in spec.members())
        if self.taught:
            kinds = [member.model for member in spec.teachers()]
            rates = [network_rates(k, recipe, data.shape, classes) for k in kinds]
            self.teacher = rates[0] if len(rates) == 1 else _in_turn(rates)
        self.views = views_per_second(data, spec.train.batch, _VIEWS_S)
        pool = spec.teacher_pool if self._is_served() else None
        self.local = LocalTeacherCount() if pool is None else pool.local_teachers()

    def estimate(self) -> Estimate:
        stages = [s for t in self.spec.teachers() for s in self._teacher_stages(t)]
        stages += [self._stage(member) for member in self.spec.members()]
        held = self.spec.data.expected_bytes() / 1e6
        teachers, pool = self.local.most, self.spec.teacher_pool
        engines = isinstance(pool, ComputingPoolSpec) and pool.engine == "auto"
        copies = _ENGINES if engines else 1
        weights = (self.teacher.parameters if self.teacher else 0) * 4 / 1e6
        memory = psutil.Process().memory_info().rss / 1e6 + self.student.step_mb
        memory += weights + teachers * (_BASE_MB + copies * weights) + min(held, 4000)
        return Estimate(
            stages=tuple(stages),
            student=self.student,
            teacher=self.teacher,
            views_per_second=self.views,
            memory_mb=memory + (_BASE_MB if teachers else 0),
            disk_mb=self._disk_mb(),
            label_bytes=self._label_bytes(),
            wire_bytes=self._wire_bytes(),
            teachers_needed=self._needed(),
        )

    def _teacher_stages(self, teacher: TeacherSpec) -> list[StageEstimate]:
        """The training of a teacher without weights, as one stage; else none."""
        if not self.taught or teacher.probe or teacher.headless:
            return []  # takes seconds
        if prepared(teacher) is not None:
            return []
        recipe, data = teacher.recipe, teacher.data
        assert recipe is not None
        assert data is not None
        images = data.load()
        fitting = _fitting(recipe, images)
        rates = network_rates(teacher.model, fitting, images.shape, len(images.classes))
        seconds = _STARTS_S + self._epochs_s(rates, recipe, 1 / rates.trained)
        about = f"{recipe.epochs} epochs, once: it is kept"
        rate = min(rates.trained, self.views)
        bound = "its own steps" if rates.trained <= self.views else "views"
        return [StageEstimate("teacher", about, seconds, rate, bound)]

    def _stage(self, member: Member) -> StageEstimate:
        each, bound, before = self._each_s(member)
        train = self.spec.train
        seconds = _STARTS_S + before + self._epochs_s(self.student, train, each)
        about = NAMES.get(member.source_name, member.source_name)
        return StageEstimate(member.name, about, seconds, 1 / each, bound)

    def _each_s(self, member: Member) -> tuple[float, str, float]:
        """Seconds of a sample, its slowest side, and seconds before the first epoch."""
        step, views, need = (
            1 / self.student.trained,
            1 / self.views,
            member.source.needs_teacher,
        )
        answer = 0.0 if self.teacher is None else 1 / self.teacher.asked
        if need == "none":
            return _slowest({"the student's steps": step, "views": views}, 0.0)
        if member.source.keeps_labels and need == "in_process":
            once = len(self.data.train) * answer
            return _slowest({"the student's steps": step, "views": views}, once)
        if need == "in_process":
            sides = {"student and teacher in turn": step + answer, "views": views}
            return _slowest(sides, 0.0)
        crowd, rate = self._pool_rate()
        sides = {
            "the student's steps": step * crowd,
            "views": views,
            "teachers": 1 / rate if rate else 0.0,
        }
        return _slowest(sides, _POOL_S)

    def _pool_rate(self) -> tuple[float, float]:
        """Slowdown on shared cores (a factor), and samples/s of all teachers (0: unknown)."""
        local, cores = self.local, os.cpu_count() or 1
        if local.rate is not None:
            return 1.0, local.first * local.rate
        if not local.most or self.teacher is None:
            return 1.0, 0.0
        threads = self.spec.train.threads or cores
        crowd = max(1.0, (threads + local.first * local.threads) / cores)
        return crowd, local.first * self.teacher.asked * local.threads / threads / crowd

    def _epochs_s(self, rates: NetworkRates, recipe: Recipe, each_s: float) -> float:
        looks = math.ceil(recipe.epochs / recipe.evaluate_every)
        asked = looks * len(self.data.validation) + len(self.data.test)
        return recipe.epochs * len(self.data.train) * each_s + asked / min(
            rates.asked, self.views
        )

    def _is_served(self) -> bool:
        return any(m.source.needs_teacher == "served" for m in self.spec.members())

    def _needed(self) -> int | None:
        if not self._is_served() or self.teacher is None:
            return None
        if self.local.rate is not None:
            return math.ceil(self.student.trained / self.local.rate)
        threads = self.spec.train.threads or os.cpu_count() or 1
        each = self.local.threads if self.local.most else threads
        return math.ceil(self.student.trained / (self.teacher.asked * each / threads))

    def _label_bytes(self) -> int:
        sources = [
            m.source for m in self.spec.members() if m.source.needs_teacher != "none"
        ]
        return max((s.bytes_per_output * self._numbers(s) for s in sources), default=0)

    def _wire_bytes(self) -> float:
        view, batch = math.prod(self.data.shape), self.spec.train.batch
        sources = [member.source for member in self.spec.members()]
        return max(s.bytes_on_wire(self._numbers(s), view, batch) for s in sources)

    def _numbers(self, source: SourceSpec) -> int:
        """Count of numbers in the answer for one image."""
        if source.gives_hidden:
            return head_of(network_of(self.spec, self.data), self.data)[1].in_features
        if self.spec.features and source.needs_teacher != "none":
            networks = networks_of(self.spec, self.data)
            taps = teacher_taps(self.spec.features, networks, self.data)
            return row_length(taps, networks, self.data)
        return len(self.data.classes)

    def _disk_mb(self) -> float:
        moments = 1 if self.spec.train.optimizer == "sgd" else 2
        weights = 4 * self.student.parameters / 1e6
        each = weights * (_KEPT * (1 + moments) + 2)
        labels = sum(
            len(self.data.train) * self._label_bytes() / 1e6
            for member in self.spec.members()
            if member.source.keeps_labels
        )
        return len(self.spec.members()) * each + labels + 2


def _slowest(sides: dict[str, float], before: float) -> tuple[float, str, float]:
    name = max(sides, key=lambda k: sides[k])
    return sides[name], name, before


def _in_turn(rates: list[NetworkRates]) -> NetworkRates:
    """Rates of an ensemble, all of whose members answer every sample."""
    return NetworkRates(
        trained=1 / sum(1 / r.trained for r in rates),
        asked=1 / sum(1 / r.asked for r in rates),
        parameters=sum(r.parameters for r in rates),
        step_mb=max(r.step_mb for r in rates),
    )
