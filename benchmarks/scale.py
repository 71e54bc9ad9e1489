"""The paper's largest scale on one machine: 614 teachers, 32 students, one coordinator."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

import psutil

from benchmarks.scene import Scene
from benchmarks.slices import cpu_seconds
from benchmarks.students import ImageCase, samples_of
from kdlab.cluster.child_configs import EmulatedStudentsConfig
from kdlab.cluster.pool import RunningPool
from kdlab.codec import from_builtins
from kdlab.papers.edl_dist.hybrid_schedule import default_thresholds
from kdlab.papers.edl_dist.reader_rules import Rules
from kdlab.report.figures import EmitLine, Figure, at, figure
from kdlab.supervision.children import Child

TEACHERS, STUDENTS = 614, 32
_T_T, _BATCH, _BEST_BATCH = 2.0, 32, 8  # a teacher's samples/s; samples of a batch, a part
_T_S = 36.0  # samples/s of a student: 18 of its 19 teachers
_WARM_UP_S, _MEASURE_S = 25.0, 30.0
_FEW = 32  # teachers of a small pool: what one more costs is the difference


T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class StudentsSeen:
    """Figures that emulated students report (kdlab/testing/emulated_students.py).

    Lists have a value for each student, except `failed`: the errors of those that failed.
    """

    time: float
    steps: list[int]
    teachers: list[int]
    connections: int
    failed: list[str]
    held: list[float]
    waited_s: list[float]
    asked: list[list[float]]
    released: list[list[float]]
    ended: list[list[float]]
    lost: int
    repeated: int
    resends: int
    hedges: int

    @property
    def lost_or_repeated(self) -> int:
        """Batches that were lost or repeated."""
        return self.lost + self.repeated

    def steps_per_second(self, before: "StudentsSeen") -> float:
        """Return the steps/s of all students since `before`.

        Raises:
            RuntimeError: some failed.
        """
        if self.failed:
            raise RuntimeError(f"emulated students failed: {self.failed[:3]}")
        return (sum(self.steps) - sum(before.steps)) / (self.time - before.time)


@dataclass(frozen=True, slots=True)
class TeachersSeen:
    """Figures that emulated teachers report.

    Seconds that renewals of leases took since the last request, sorted; (time, samples/s) of
    all teachers that were well since then.
    """

    renewals: list[float]
    capacities: list[tuple[float, float]]


def measure(say: EmitLine) -> list[Figure]:
    samples = samples_of(ImageCase(8, _BATCH, 1))
    with Scene(samples) as scene:
        base_mb = _mb(scene.emulated(_BEST_BATCH, teachers=_FEW, t_t=_T_T))
    say(f"{TEACHERS} teachers are starting")
    with Scene(samples) as scene:
        pool = scene.emulated(_BEST_BATCH, teachers=TEACHERS, t_t=_T_T)
        each_mb = (_mb(pool) - base_mb) / (TEACHERS - _FEW)
        students = emulated_students(
            scene,
            pool,
            students=STUDENTS,
            t_s=_T_S,
            batch=_BATCH,
            rules={"settle_s": 12.0, "wait_s": 120.0, "deadline_s": 120.0},
        )
        time.sleep(_WARM_UP_S)  # the first answers take batch / t_t seconds
        return [
            *at(f"{TEACHERS}x{STUDENTS}", *_measured(pool, students, say)),
            figure("emulated_teacher_mb", each_mb, "MB"),
        ]


def emulated_students(
    scene: Scene,
    pool: RunningPool,
    *,
    t_s: float,
    batch: int,
    rules: Mapping[str, object],
    students: int = 1,
) -> Child:
    """Start a process of them on a pool that is up; `rules` replace defaults."""
    lt, ut = default_thresholds(batch)
    config = EmulatedStudentsConfig(
        student="emulated-student",
        coordinator=pool.address,
        tls=pool.tls,
        students=students,
        batch=batch,
        batches=1_000_000,
        classes=scene.samples.classes,
        replies="full",
        top_k=1,
        inputs="reference",
        rules=from_builtins(Rules, {"t_s": t_s, "lt": lt, "ut": ut, **rules}),
    )
    child = scene.child("kdlab.testing.emulated_students", config, "students")
    child.answer(60.0)
    return child


def _measured(pool: RunningPool, students: Child, say: EmitLine) -> list[Figure]:
    assert pool.scheduler is not None
    scheduler = psutil.Process(pool.scheduler.pid)
    asked_of(pool.machines.children[0], TeachersSeen)  # drops the renewals before now
    before, cpu = asked_of(students, StudentsSeen), cpu_seconds(scheduler)
    time.sleep(_MEASURE_S)  # the time of the measurement
    after, spent = asked_of(students, StudentsSeen), (cpu_seconds(scheduler) - cpu)
    seconds = after.time - before.time
    renewals = asked_of(pool.machines.children[0], TeachersSeen).renewals
    held, rate = sum(after.teachers), _BATCH * after.steps_per_second(before) / STUDENTS
    say(
        f"{len(renewals) / seconds:.0f} renewals/s, {held} teachers held, "
        f"{after.connections} connections, {rate:.1f} samples/s each student"
    )
    p99 = renewals[min(len(renewals) - 1, int(0.99 * len(renewals)))]
    return [
        figure("lease_p99_s", p99, "s"),
        figure("coordinator_core_share", spent / seconds, "cores"),
        figure("student_rate_over_t_s", rate / _T_S, "ratio"),
        figure("teachers_held", held, "teachers"),
    ]


def asked_of(child: Child, kind: type[T]) -> T:
    child.send(figures=True)
    return from_builtins(kind, child.answer(60.0))


def _mb(pool: RunningPool) -> float:
    return float(psutil.Process(pool.machines.children[0].pid).memory_info().rss) / 1e6
