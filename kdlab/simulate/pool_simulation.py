"""Simulation of one case of `simulate/edl_dist`, event by event, with the papers' machines."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Literal

from kdlab.papers.edl_dist.distil_reader import DistilReader
from kdlab.papers.edl_dist.hybrid_schedule import default_thresholds
from kdlab.papers.edl_dist.in_flight import Part
from kdlab.papers.edl_dist.leases import LeaseTable
from kdlab.papers.edl_dist.reader_instructions import (
    AskTeacher,
    Check,
    Deliver,
    Instructions,
    Need,
    Release,
    ReturnTeacher,
    Send,
)
from kdlab.papers.edl_dist.reader_rules import Rules, Teacher
from kdlab.papers.edl_dist.teacher_info import TeacherInfo
from kdlab.simulate.clock import Clock
from kdlab.simulate.edl_dist import EdlDist, Fleet, PoolCase
from kdlab.simulate.mishaps import Mishaps, TimedTeacher, to_be_had

_TICK_S = 0.05  # of the monitoring task, as in a run
_TICKS = 20.0  # per step, where steps are long
_SETTLED = 0.95  # of the demand
_SETTLED_OVER_S = 5.0
_RENEWAL_S = 1.5  # of a lease, as in a run
_SOON_S = 60.0  # a teacher asked for so soon after a release should have been kept

Way = Literal["there", "back"]


class SimulatedTeacher(TimedTeacher):
    def __init__(self, address: str, t_t: float, simulation: "Simulation") -> None:
        super().__init__(t_t, simulation.spec, simulation.chance)
        self.address, self.sizes = address, simulation.spec.sizes(t_t, simulation.batch)
        self.sent_by: dict[Way, float] = {"there": 0.0, "back": 0.0}


@dataclass(slots=True)
class PoolOutcome:
    """Results of one simulated case."""

    case: PoolCase
    samples_per_second: float  # of all students, after the warm-up
    demand: float  # samples/s of all students if they never waited
    capacity: float  # samples/s of all teachers together
    to_be_had: float  # samples/s that teachers could have answered, mean after the warm-up
    teachers_used: int  # held at the end
    held_over_needed: float  # teachers held in the second half, over those that suffice
    settle_s: float  # from the start to 0.95 of what can be reached
    volume_max: int  # samples that were unused at once, of one student
    volume_over_ut: float
    volume_over_bound: float  # over ut or what the rates and latencies call for
    lost: int  # samples of the batches due that were not delivered
    repeated: int
    resends: int
    hedges: int
    asked: int  # teachers asked for beyond the static share
    released: int
    released_in_vain: int  # teachers asked for within a minute of a release
    events: int
    simulated_s: float


@dataclass(slots=True)
class _Student:
    name: str
    t_s: float
    reader: DistilReader
    slots: list[int] = field(default_factory=list)
    training: bool = False
    stands_at_barrier: bool = False
    steps: int = 0
    version: int = -1
    asked: list[float] = field(default_factory=list)  # when
    released: list[float] = field(default_factory=list)
    delivered: dict[int, int] = field(default_factory=dict)  # batch -> times
    ended: list[float] = field(default_factory=list)  # time of each step
    link_free_at: dict[Way, float] = field(
        default_factory=lambda: {"there": 0.0, "back": 0.0}
    )
    held: list[tuple[float, float]] = field(default_factory=list)  # time, samples/s held
    begin: float = 0.0  # time at the end of the warm-up
    end: float = 0.0


class Simulation(Mishaps[SimulatedTeacher]):
    """Simulates one case; `run()` returns its outcome."""

    def __init__(self, spec: EdlDist, case: PoolCase) -> None:
        self.spec, self.case, self.clock = spec, case, Clock()
        super().__init__(random.Random(spec.seed), lambda: self.clock.now, self.clock.after)
        self.table = LeaseTable()  # a lost teacher is seen at once
        self.teachers: dict[str, SimulatedTeacher] = {}
        self.batch = case.batch or spec.batch
        self.step_s = self.batch / case.student.samples_per_second
        steps = case.steps or spec.steps
        self.steps, self.wanted = steps, steps + steps // 5
        self.joined = 0
        self.students = [self._student(number) for number in range(case.students)]

    def _student(self, number: int) -> _Student:
        spec, t_s = self.spec, self.case.student.samples_per_second
        lt, ut = default_thresholds(self.batch)
        rules = Rules(
            t_s=t_s,
            lt=lt if spec.lt is None else int(spec.lt * self.batch),
            ut=ut if spec.ut is None else int(spec.ut * self.batch),
            policy=spec.policy,
            per_teacher=spec.per_teacher,
            order="strict" if spec.in_step else self.case.order or spec.order,
            deadline_s=spec.deadline_s,
            wait_s=1e9,
        )
        sizes = [self.batch] * (self.wanted + rules.ut // self.batch + rules.slots + 1)
        reader = DistilReader(rules, lambda epoch: sizes, epochs=1)
        return _Student(f"student-{number}", t_s, reader)

    def run(self) -> PoolOutcome:
        first = Fleet(teacher=self.case.teacher, count=self.case.teachers)
        for fleet in (first, *self.case.more):
            for _ in range(fleet.count):
                self._join(fleet.teacher.samples_per_second)
        for student in self.students:
            self.table.on_demand(student.name, student.t_s, self.clock.now)
            student.reader.on_announced()
        for student in self.students:
            self._notify(student)
            self._tick(student)
        self.note_capacity()
        self.plan(self.spec.moves)
        self.clock.run(
            50 * self.wanted * self.step_s,
            lambda: all(s.steps >= self.wanted for s in self.students),
        )
        return self._outcome()

    # Surroundings of the machines

    def join_one(self) -> None:
        self._join(self.case.teacher.samples_per_second)

    def _join(self, t_t: float) -> None:
        address = f"teacher-{self.joined}"
        self.joined += 1
        self.teachers[address] = SimulatedTeacher(address, t_t, self)
        self.table.on_ready(address, t_t, self.clock.now)
        self._notify_all()

    def warn(self, victim: SimulatedTeacher) -> None:
        self.table.on_leaving(victim.address, self.clock.now)
        self._notify_all()

    def end(self, victim: SimulatedTeacher) -> None:
        self.table.on_lost(victim.address, self.clock.now)
        self._notify_all()

    def ail(self, victim: SimulatedTeacher) -> None:
        """Report it with the next renewal of its lease; one that hangs renews none."""
        self.clock.after(_RENEWAL_S, partial(self._renew, victim))
        if victim.hangs_until > self.clock.now:
            self.clock.after(self.table.ttl_s, partial(self._expire, victim))

    def _renew(self, victim: SimulatedTeacher) -> None:
        now = self.clock.now
        if victim.alive and victim.hangs_until <= now:
            if not self.table.on_renewed(victim.address, now):
                self.table.on_ready(victim.address, victim.t_t, now)
            self.table.on_rate(victim.address, victim.t_t / victim.times, now)
            self._notify_all()

    def _expire(self, victim: SimulatedTeacher) -> None:
        if victim.alive and victim.hangs_until > self.clock.now:
            self.table.on_lost(victim.address, self.clock.now, expired=True)
            self._notify_all()

    def _notify_all(self) -> None:
        for student in self.students:
            if self.table.version_of(student.name) > student.version >= 0:
                self._notify(student)

    def _notify(self, student: _Student) -> None:
        delta = self.table.delta(student.name, student.version)
        student.version = delta.version
        teachers = []
        for le in delta.held:
            best, least = self.teachers[le.teacher].sizes
            info = TeacherInfo(best_batch=best, min_batch=least)
            teachers.append(Teacher.from_lease(le, info))
        on_teachers = student.reader.on_teachers
        self._do(student, on_teachers(teachers, delta.gone, delta.full, self.clock.now))

    def _tick(self, student: _Student) -> None:
        self._do(student, student.reader.on_tick(self.clock.now))
        rate = sum(lease.t_t for lease in self.table.held_by(student.name))
        if not student.held or student.held[-1][1] != rate:
            student.held.append((self.clock.now, rate))
        if student.steps < self.wanted:
            look_s = max(_TICK_S, self.step_s / _TICKS)
            self.clock.after(look_s, lambda: self._tick(student))

    def _do(self, student: _Student, instructions: Instructions) -> None:
        now = self.clock.now
        for instruction in instructions:
            match instruction:
                case Send(part, address, lease):
                    self._ask(student, part, address, lease)
                case Check(part, address, lease, _):
                    self._ask(student, part, address, lease, check=True)
                case Deliver(_, batch):
                    student.slots.append(batch)
                    student.delivered[batch] = student.delivered.get(batch, 0) + 1
                    self._train(student)
                case AskTeacher(need):
                    student.asked.append(now)
                    self.table.on_extra(student.name, now, need)  # or it searches on
                    self._notify_all()
                case Need(need):
                    self.table.on_need(student.name, need, now)
                    self._notify_all()
                case Release(address, epoch, need):
                    student.released.append(now)
                    self.table.on_release(student.name, address, epoch, need, now)
                    self._notify_all()
                case ReturnTeacher(address, epoch, _):
                    self.table.on_release(student.name, address, epoch, None, now)
                    self._notify_all()

    def _ask(
        self, student: _Student, part: Part, address: str, lease: int, check: bool = False
    ) -> None:
        teacher, spec, now = self.teachers[address], self.spec, self.clock.now
        if not teacher.alive:
            return  # the reader is notified next
        there = self._over_links(student, teacher, part.size * spec.bytes_in, "there", now)
        teacher.start_request(part.size, there)

        def computed() -> None:
            now = self.clock.now
            if teacher.hangs_until > now:
                self.clock.after(teacher.hangs_until - now, computed)
                return
            back = self._over_links(
                student, teacher, part.size * spec.bytes_out, "back", now
            )
            self.clock.after(back - now, answer)

        def answer() -> None:
            time, reader = self.clock.now, student.reader
            if not teacher.alive:  # known already, unless it went without an answer
                todo = reader.on_trouble(address, lease, "gone", unusable=False, time=time)
            elif check:
                case = reader.trust.cases.get(part)
                both = [] if case is None else [case.first, case.second]
                todo = reader.on_compared(part, address, lease, both, time)
            else:
                todo = reader.on_answer(part, address, lease, time)
            self._do(student, todo)

        self.clock.after(teacher.free_at - now, computed)

    def _over_links(
        self,
        student: _Student,
        teacher: SimulatedTeacher,
        size: float,
        way: Way,
        now: float,
    ) -> float:
        """Time at which `size` bytes have arrived; links carry both directions at once."""
        spec, leaves = self.spec, now
        if spec.student_mbps is not None:
            leaves = max(now, student.link_free_at[way]) + 8e-6 * size / spec.student_mbps
            student.link_free_at[way] = leaves
        if spec.link_mbps is not None:
            leaves = max(leaves, teacher.sent_by[way]) + 8e-6 * size / spec.link_mbps
            teacher.sent_by[way] = leaves
        return leaves + spec.latency_s

    def _train(self, student: _Student) -> None:
        if student.training or student.stands_at_barrier or not student.slots:
            return
        student.slots.pop(0)
        if not self.spec.in_step:
            student.training = True
            self.clock.after(self.step_s, lambda: self._step_done(student))
            return
        student.stands_at_barrier = True
        if all(s.stands_at_barrier for s in self.students):
            for student_in_step in self.students:
                student_in_step.stands_at_barrier, student_in_step.training = False, True
                self.clock.after(self.step_s, partial(self._step_done, student_in_step))

    def _step_done(self, student: _Student) -> None:
        student.training = False
        student.steps += 1
        student.ended.append(self.clock.now)
        if student.steps == self.wanted - self.steps:
            student.begin = self.clock.now
        if student.steps == self.wanted:
            student.end = self.clock.now
        if student.steps < self.wanted:
            instructions = student.reader.on_slot_free(self.batch, self.clock.now)
            self._train(student)
            self._do(student, instructions)

    # Results

    def _outcome(self) -> PoolOutcome:
        students, readers = self.students, [s.reader for s in self.students]
        rate = sum(
            self.batch * self.steps / max(1e-9, s.end - s.begin)
            for s in students
            if s.steps >= self.wanted
        )
        demand = sum(s.t_s for s in students)
        capacity = sum(t.t_t for t in self.teachers.values() if t.alive)
        return PoolOutcome(
            case=self.case,
            samples_per_second=rate,
            demand=demand,
            capacity=capacity,
            to_be_had=self._to_be_had(demand),
            teachers_used=sum(len(self.table.held_by(s.name)) for s in students),
            held_over_needed=self._held() / min(demand, capacity),
            settle_s=max(map(self._settled_at, students)),
            volume_max=max(r.flow.volume_max for r in readers),
            volume_over_ut=max(r.flow.volume_max / r.flow.rules.ut for r in readers),
            volume_over_bound=max(r.flow.volume_max / r.flow.room_max for r in readers),
            lost=self.batch * sum(map(self._lost, students)),
            repeated=self.batch
            * sum(n - 1 for s in students for n in s.delivered.values()),
            resends=sum(r.ledger.resends for r in readers),
            hedges=sum(r.ledger.hedges for r in readers),
            asked=sum(len(s.asked) for s in students),
            released=sum(len(s.released) for s in students),
            released_in_vain=sum(in_vain(s.released, s.asked) for s in students),
            events=self.clock.events,
            simulated_s=self.clock.now,
        )

    def _to_be_had(self, demand: float) -> float:
        begin, end = self.students[0].begin, self.clock.now
        return to_be_had(self.capacities, demand, begin, end) / max(1e-9, end - begin)

    def _held(self) -> float:
        """Mean samples/s of the teachers that students held in the second half."""
        end = self.clock.now
        total = 0.0
        for student in self.students:
            times = [*student.held, (end, 0.0)]
            for (at, rate), (until, _) in pairwise(times):
                total += rate * max(0.0, min(until, end) - max(at, end / 2))
        return total / (end / 2) if end else 0.0

    def _settled_at(self, student: _Student) -> float:
        """Time at which the student first reached 0.95 of its possible rate, over the next 5 s."""
        share = sum(t.t_t for t in self.teachers.values()) / len(self.students)
        reach = min(student.t_s, share)
        return settled_at([0.0, *student.ended], self.batch, reach)

    def _lost(self, student: _Student) -> int:
        """Number of batches that are missing, apart from those that may be under way."""
        room = student.reader.flow.schedule.room(student.reader.flow.level()) // self.batch
        due = student.steps - room - student.reader.flow.rules.slots - 1
        return sum(batch not in student.delivered for batch in range(max(0, due)))


def settled_at(ended: Sequence[float], batch: int, reach: float) -> float:
    """Time at which steps of `batch` samples first reached 0.95 of `reach` samples/s, over 5 s.

    `ended` has the seconds of the start, then of each step. Infinity where they never did.
    """
    steps = max(2, round(_SETTLED_OVER_S * reach / batch))
    for first in range(len(ended) - steps):
        took = ended[first + steps] - ended[first]
        if steps * batch >= _SETTLED * reach * took:
            return ended[first]
    return float("inf")


def in_vain(released: Sequence[float], asked: Sequence[float]) -> int:
    """Number of requests for a teacher within a minute of a release; both are times."""
    return sum(any(0 <= more - at < _SOON_S for at in released) for more in asked)
