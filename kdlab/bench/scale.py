"""The paper's largest scale on one machine: 614 teachers, 32 students, one coordinator."""

import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import psutil

from kdlab.bench.slices import cpu_seconds
from kdlab.bench.students import ImageCase, deployment_for, samples_of
from kdlab.cluster.child_configs import EmulatedStudentsConfig
from kdlab.cluster.emulated_pool import EmulatedPool, RunningEmulatedPool
from kdlab.messages import typed
from kdlab.report.figures import Figure, figure
from kdlab.supervision.children import Child

TEACHERS, STUDENTS = 614, 32
_T_T, _BATCH, _BEST_BATCH = 2.0, 32, 8  # a teacher's samples/s; samples of a batch, a part
_T_S = 36.0  # samples/s of a student: 18 of its 19 teachers
_WARM_UP_S, _MEASURE_S = 25.0, 30.0
_FEW = 32  # teachers of a small pool: what one more costs is the difference


T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class StudentsSeen:
    """What emulated students say of themselves (kdlab/cluster/reader/emulated_students.py).

    Lists have a value for each of them, but for `failed`: the words of those that did.
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
    lied_at: list[int | None]
    again: list[int]
    lied_of: list[int]

    def steps_per_second(self, before: "StudentsSeen") -> float:
        """Rate of all together, since then.

        Raises:
            RuntimeError: some failed.
        """
        if self.failed:
            raise RuntimeError(f"emulated students failed: {self.failed[:3]}")
        return (sum(self.steps) - sum(before.steps)) / (self.time - before.time)


@dataclass(frozen=True, slots=True)
class Renewals:
    """Seconds that renewals of leases took since the last question, sorted."""

    renewals: list[float]


def measure(say: Callable[[str], None]) -> list[Figure]:
    samples = samples_of(ImageCase(8, _BATCH, 1))
    deployment = replace(deployment_for(samples), batch=_BEST_BATCH)
    with tempfile.TemporaryDirectory() as folder:
        few = EmulatedPool(teachers=_FEW, t_t=_T_T).start(deployment, Path(folder) / "few")
        few.wait()
        base_mb = _mb(few.host.pid)
        few.close()
        say(f"{TEACHERS} teachers are starting")
        pool = EmulatedPool(teachers=TEACHERS, t_t=_T_T).start(deployment, Path(folder))
        with ExitStack() as stack:
            stack.callback(pool.close)
            begin = time.monotonic()
            pool.wait()
            up_s = time.monotonic() - begin
            each_mb = (_mb(pool.host.pid) - base_mb) / (TEACHERS - _FEW)
            students = _students(pool, samples.classes, Path(folder))
            stack.callback(students.stop)
            time.sleep(_WARM_UP_S)  # the first answers take batch / t_t seconds
            return _measure(pool, students, each_mb, up_s, say)


def _students(pool: RunningEmulatedPool, classes: int, folder: Path) -> Child:
    return emulated_students(
        pool,
        classes,
        folder,
        students=STUDENTS,
        t_s=_T_S,
        batch=_BATCH,
        rules={"settle_s": 12.0, "wait_s": 120.0, "give_up_s": 120.0},
        deadline_s=120.0,
    )


def emulated_students(
    pool: RunningEmulatedPool,
    classes: int,
    folder: Path,
    *,
    t_s: float,
    batch: int,
    rules: dict[str, object],
    students: int = 1,
    deadline_s: float = 30.0,
) -> Child:
    """A process of them, on a pool that is up; see `EmulatedStudentsConfig`."""
    config = EmulatedStudentsConfig(
        student="emulated-student",
        coordinator=pool.address,
        tls=pool.tls,
        students=students,
        batch=batch,
        batches=1_000_000,
        classes=classes,
        replies="full",
        top_k=1,
        inputs="reference",
        deadline_s=deadline_s,
        t_s=t_s,
        rules=rules,
    )
    child = Child("kdlab.cluster.reader.emulated_students", config, folder / "students.log")
    child.answer(60.0)
    return child


def _measure(
    pool: RunningEmulatedPool,
    students: Child,
    each_mb: float,
    up_s: float,
    say: Callable[[str], None],
) -> list[Figure]:
    scheduler = psutil.Process(pool.scheduler.pid)
    asked_of(pool.host, Renewals)  # what was before does not count
    before, cpu = asked_of(students, StudentsSeen), cpu_seconds(scheduler)
    time.sleep(_MEASURE_S)  # the time of the measurement
    after, share = asked_of(students, StudentsSeen), (cpu_seconds(scheduler) - cpu)
    seconds = after.time - before.time
    renewals = asked_of(pool.host, Renewals).renewals
    rate = _BATCH * after.steps_per_second(before) / STUDENTS
    say(
        f"{len(renewals) / seconds:.0f} renewals/s, {sum(after.teachers)} teachers held, "
        f"{rate:.1f} samples/s each student"
    )
    label = f"{TEACHERS}x{STUDENTS}"
    p99 = renewals[min(len(renewals) - 1, int(0.99 * len(renewals)))]
    return [
        figure(f"lease_p99_s/{label}", [p99], "s", "<= 1"),
        figure(f"lease_median_s/{label}", [renewals[len(renewals) // 2]], "s"),
        figure(f"renewals_per_s/{label}", [len(renewals) / seconds], "1/s"),
        figure(f"coordinator_core_share/{label}", [share / seconds], "cores", "<= 0.3"),
        figure(f"student_samples_per_second/{label}", [rate], "samples/s"),
        figure(f"student_rate_over_t_s/{label}", [rate / _T_S], "ratio"),
        figure(f"connections/{label}", [after.connections], "connections"),
        figure(f"teachers_held/{label}", [sum(after.teachers)], "teachers"),
        figure(f"start_s/{label}", [up_s], "s"),
        figure("emulated_teacher_mb", [each_mb], "MB"),
    ]


def asked_of(child: Child, kind: type[T]) -> T:
    child.send(figures=True)
    return typed(kind, child.answer(60.0))


def _mb(pid: int) -> float:
    return float(psutil.Process(pid).memory_info().rss) / 1e6
