"""EDL-Dist on a simulated clock: the same reader and lease machines as in a real run.

What is simulated is only what they talk to: teachers that need size / t_t seconds for a
part, one after the other; wires with a latency; a student that needs batch / t_s seconds
for a step. So the throughput of a plan, and what the schedule does on the way, is known
before a machine is rented.
"""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Annotated, Literal

from kdlab.config import Fault, Range, register
from kdlab.config.spec import NOT_NEGATIVE, POSITIVE, SHARE, Spec
from kdlab.papers.edl_dist.distil_reader import DistilReader, Rules, Teacher
from kdlab.papers.edl_dist.hybrid_schedule import Policy
from kdlab.papers.edl_dist.in_flight import Part
from kdlab.papers.edl_dist.leases import LeaseTable
from kdlab.papers.edl_dist.reader_instructions import (
    AskTeacher,
    Deliver,
    GiveBack,
    Instructions,
    Release,
    Send,
)
from kdlab.simulate.clock import Clock
from kdlab.simulate.kind import SimulationSpec
from kdlab.simulate.profile import Profile

_AT_LEAST_1 = Range(ge=1)
_LOOKS = 20.0  # of the monitoring task, per step of the student; at most 20 a second


@dataclass(frozen=True, kw_only=True)
class Case(Spec):
    """One row of a table: students of one kind with teachers of one kind.

    published: what the paper prints for EDL-Dist, in the unit of the table.
    n_training, online: the same for its baselines.
    """

    name: str
    student: Profile
    teacher: Profile
    students: Annotated[int, _AT_LEAST_1] = 1
    teachers: Annotated[int, _AT_LEAST_1] = 1
    published: Annotated[float, POSITIVE] | None = None
    n_training: Annotated[float, POSITIVE] | None = None
    online: Annotated[float, POSITIVE] | None = None


@register("simulate/edl_dist")
@dataclass(frozen=True, kw_only=True)
class EdlDist(SimulationSpec):
    """A table or a plan: each case is simulated by itself.

    unit: samples_per_second of all students together, or days for `images`.
    images: samples of the whole training, for days.
    batch: of a student; best_batch: what a teacher computes at once.
    lt, ut: thresholds in batches.
    latency_s: of a wire, one way.
    steps: simulated for each student after the warm-up of a fifth as many.
    kill_share: of the teachers that are killed, at random times, and replaced.
    calibration: which published numbers the rates were taken from: those are no evidence.
    """

    cases: tuple[Case, ...]
    unit: Literal["samples_per_second", "days"] = "samples_per_second"
    images: Annotated[float, POSITIVE] | None = None
    batch: Annotated[int, _AT_LEAST_1] = 32
    best_batch: Annotated[int, _AT_LEAST_1] = 32
    lt: Annotated[float, NOT_NEGATIVE] = 8
    ut: Annotated[float, Range(ge=2)] = 64
    per_teacher: Annotated[int, _AT_LEAST_1] = 2
    policy: Policy = "guarded"
    latency_s: Annotated[float, NOT_NEGATIVE] = 0.001
    steps: Annotated[int, Range(ge=10)] = 400
    kill_share: Annotated[float, SHARE] = 0.0
    seed: int = 0
    calibration: str = ""

    def cross_faults(self) -> Iterator[Fault]:
        if not self.cases:
            yield Fault("cases", "is empty; give at least one")
        if self.unit == "days" and self.images is None:
            yield Fault("images", "is missing; days need the samples of the whole training")
        if self.lt >= self.ut:
            yield Fault("lt", f"is {self.lt:g} batches and ut is {self.ut:g}")


@dataclass(slots=True)
class Outcome:
    """What a case came to."""

    case: Case
    samples_per_second: float  # of all students, after the warm-up
    teachers_used: int  # held at the end
    volume_over_ut: float  # largest
    lost: int  # samples of the batches due that were not delivered
    repeated: int
    resends: int
    asked: int  # teachers asked for beyond the static share
    events: int
    simulated_s: float


@dataclass(slots=True)
class _SimulatedTeacher:
    address: str
    t_t: float
    free_at: float = 0.0
    alive: bool = True
    served: int = 0


@dataclass(slots=True)
class _Student:
    name: str
    t_s: float
    reader: DistilReader
    slots: list[int] = field(default_factory=list)
    training: bool = False
    steps: int = 0
    version: int = -1
    asked: int = 0
    delivered: dict[int, int] = field(default_factory=dict)  # batch -> times
    begin: float = 0.0  # time at the end of the warm-up
    end: float = 0.0


class Simulation:
    """One case. `run()` gives its outcome."""

    def __init__(self, spec: EdlDist, case: Case) -> None:
        self.spec, self.case, self.clock = spec, case, Clock()
        self.chance = random.Random(spec.seed)
        self.table = LeaseTable(ttl_s=1e9)  # a lost teacher is seen at once, none hangs
        self.teachers: dict[str, _SimulatedTeacher] = {}
        self.step_s = spec.batch / case.student.samples_per_second
        self.look_s = max(0.05, self.step_s / _LOOKS)
        self.wanted = spec.steps + spec.steps // 5
        part_s = spec.best_batch / case.teacher.samples_per_second
        self.students = [self._student(number, part_s) for number in range(case.students)]

    def _student(self, number: int, part_s: float) -> _Student:
        spec, t_s = self.spec, self.case.student.samples_per_second
        rules = Rules(
            t_s=t_s,
            lt=int(spec.lt * spec.batch),
            ut=int(spec.ut * spec.batch),
            policy=spec.policy,
            # A change shows when the first answers of the new set are there: 3 (batch + RTT)
            settle_s=3 * (part_s + 2 * spec.latency_s),
            window_s=max(10.0, 10 * part_s),
            per_teacher=spec.per_teacher,
            give_up_s=1e9,
            wait_s=1e9,
            hedge=False,
        )
        sizes = [spec.batch] * (self.wanted + int(spec.ut) + 8)
        return _Student(
            f"student-{number}", t_s, DistilReader(rules, lambda e: sizes, epochs=1)
        )

    def run(self) -> Outcome:
        for number in range(self.case.teachers):
            self._join(f"teacher-{number}")
        for student in self.students:
            self.table.on_demand(student.name, student.t_s, self.clock.now)
            student.reader.on_announced()
            self._tell(student)
            self._look(student)
        kills = round(self.spec.kill_share * self.case.teachers)
        span = self.wanted * self.step_s
        for _ in range(kills):
            self.clock.after(self.chance.uniform(0.05, 0.9) * span, self._kill)
        self.clock.run(
            50 * span, lambda: all(s.steps >= self.wanted for s in self.students)
        )
        return self._outcome()

    # What the machines talk to

    def _join(self, address: str) -> None:
        t_t = self.case.teacher.samples_per_second
        self.teachers[address] = _SimulatedTeacher(address, t_t)
        self.table.on_ready(address, t_t, self.clock.now)
        self._tell_all()

    def _kill(self) -> None:
        alive = [t for t in self.teachers.values() if t.alive]
        victim = self.chance.choice(alive)
        victim.alive = False
        self.table.on_lost(victim.address, self.clock.now)
        self._tell_all()
        self._join(f"{victim.address}'")

    def _tell_all(self) -> None:
        for student in self.students:
            if self.table.version_of(student.name) > student.version >= 0:
                self._tell(student)

    def _tell(self, student: _Student) -> None:
        delta = self.table.delta(student.name, student.version)
        student.version = delta.version
        given = [
            Teacher(le.teacher, le.epoch, le.t_t, self.spec.best_batch) for le in delta.held
        ]
        told = student.reader.on_teachers(given, delta.gone, delta.full, self.clock.now)
        self._do(student, told)

    def _look(self, student: _Student) -> None:
        self._do(student, student.reader.on_look(self.clock.now))
        if student.steps < self.wanted:
            self.clock.after(self.look_s, lambda: self._look(student))

    def _do(self, student: _Student, told: Instructions) -> None:
        for instruction in told:
            match instruction:
                case Send(part, address, lease):
                    self._send(student, part, address, lease)
                case Deliver(_, batch):
                    student.slots.append(batch)
                    student.delivered[batch] = student.delivered.get(batch, 0) + 1
                    self._train(student)
                case AskTeacher():
                    student.asked += 1
                    self.table.on_extra(student.name, self.clock.now)  # or it searches on
                    self._tell_all()
                case Release(address):
                    self.table.on_release(student.name, address, self.clock.now)
                    self._tell_all()
                case GiveBack(address, epoch, _):
                    self.table.on_given_back(student.name, address, epoch, self.clock.now)
                    self._tell_all()

    def _send(self, student: _Student, part: Part, address: str, lease: int) -> None:
        teacher, wire = self.teachers[address], self.spec.latency_s
        arrives = self.clock.now + wire
        teacher.free_at = max(arrives, teacher.free_at) + part.size / teacher.t_t

        def answer() -> None:
            if teacher.alive:
                teacher.served += part.size
                told = student.reader.on_answer(part, address, lease, self.clock.now)
                self._do(student, told)

        self.clock.after(teacher.free_at + wire - self.clock.now, answer)

    def _train(self, student: _Student) -> None:
        if student.training or not student.slots:
            return
        student.training = True
        student.slots.pop(0)
        self.clock.after(self.step_s, self._step_done(student))

    def _step_done(self, student: _Student) -> Callable[[], None]:
        def done() -> None:
            student.training = False
            student.steps += 1
            if student.steps == self.wanted - self.spec.steps:
                student.begin = self.clock.now
            if student.steps == self.wanted:
                student.end = self.clock.now
            if student.steps < self.wanted:
                told = student.reader.on_slot_free(self.spec.batch, self.clock.now)
                self._train(student)
                self._do(student, told)

        return done

    def _outcome(self) -> Outcome:
        rate = sum(
            self.spec.batch * self.spec.steps / max(1e-9, s.end - s.begin)
            for s in self.students
            if s.steps >= self.wanted
        )
        return Outcome(
            case=self.case,
            samples_per_second=rate,
            teachers_used=sum(len(self.table.held_by(s.name)) for s in self.students),
            volume_over_ut=max(
                s.reader.volume_max / s.reader.rules.ut for s in self.students
            ),
            lost=self.spec.batch * sum(map(self._lost, self.students)),
            repeated=self.spec.batch
            * sum(n - 1 for s in self.students for n in s.delivered.values()),
            resends=sum(s.reader.ledger.resends for s in self.students),
            asked=sum(s.asked for s in self.students),
            events=self.clock.happened,
            simulated_s=self.clock.now,
        )

    def _lost(self, student: _Student) -> int:
        """Batches that should have come by now: all but those that may be under way."""
        due = student.steps - int(self.spec.ut) - student.reader.rules.slots
        return sum(batch not in student.delivered for batch in range(max(0, due)))


def in_unit(spec: EdlDist, samples_per_second: float) -> float:
    """The throughput as the table prints it."""
    if spec.unit == "samples_per_second":
        return samples_per_second
    assert spec.images is not None
    return spec.images / samples_per_second / 86_400
