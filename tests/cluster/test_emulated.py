"""Emulated teachers and students: what they answer and when, who lies, who comes and goes."""

import asyncio
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
from tests_support import until

from kdlab.cluster.child_configs import (
    EmulatedStudentsConfig,
    EmulatedTeachers,
    EmulatedTeachersConfig,
)
from kdlab.cluster.emulated_pool import EmulatedPool
from kdlab.codec import from_builtins, part_of, to_builtins
from kdlab.config.check import construct
from kdlab.config.load import compose_card
from kdlab.errors import SpecError
from kdlab.papers.edl_dist.reader_instructions import Deliver, Fail
from kdlab.papers.edl_dist.reader_rules import Rules
from kdlab.simulate.clock import Clock
from kdlab.simulate.edl_dist import EdlDist, Fleet, PoolCase
from kdlab.simulate.mishaps import Behaviour, Move, to_be_had
from kdlab.simulate.pool_simulation import Simulation
from kdlab.simulate.profile import RateProfile
from kdlab.testing import emulated_teachers
from kdlab.testing.emulated_students import EmulatedStudent, _lost
from kdlab.testing.emulated_teachers import (
    RENEWALS,
    EmulatedTeacher,
    EmulationOrder,
    Host,
)

TEACHERS = EmulatedTeachersConfig(
    scheduler="tcp://there:1", host="127.0.0.1", tls=None, scratch="", teachers=1, t_t=100.0
)
ASKED = {"epoch": 0, "replies": "full"}


class Loop(Clock):
    """An event loop whose time passes only when a test says so."""

    def __init__(self):
        super().__init__()
        self.now, self.calls = 10.0, []

    def time(self):
        return self.now

    def call_at(self, when, function, *arguments):
        self.calls.append((when, function, arguments))
        self.after(when - self.now, partial(function, *arguments))

    def call_later(self, seconds, function, *arguments):
        self.call_at(self.now + seconds, function, *arguments)


@pytest.fixture
def loop(monkeypatch):
    loop = Loop()
    monkeypatch.setattr(emulated_teachers.asyncio, "get_running_loop", lambda: loop)
    return loop


def answers(teacher, loop, *sizes):
    """(seconds after the first was asked, arrays) of requests that come together."""
    sent = []
    for size in sizes:
        teacher.infer(ASKED, {"ids": np.arange(size)}, sent.append)
    loop.run(1e9)
    return [when - 10.0 for when, *_ in loop.calls], sent


def emulated(rate=100.0, number=3, **options):
    teacher = EmulatedTeacher(number, rate, replace(TEACHERS, **options))
    teacher.classes, teacher.alive = 10, True
    return teacher


def test_requests_take_their_time_one_after_the_other(loop):
    whens, sent = answers(emulated(jitter=0.0), loop, 20, 10)
    assert whens == pytest.approx([0.2, 0.3])
    assert [arrays["logits"].shape for arrays in sent] == [(20, 10), (10, 10)]
    assert not any(arrays["logits"].any() for arrays in sent)
    queued, _, computed = sent[1]["took"]
    assert (queued, computed) == pytest.approx((0.2, 0.1))


def test_times_are_spread_around_their_mean_and_the_same_for_a_seed(loop):
    whens, _ = answers(emulated(jitter=0.5), loop, *[10] * 200)
    taken = np.diff([0.0, *whens])
    assert 0.05 <= taken.min() < taken.max() <= 0.15
    assert taken.mean() == pytest.approx(0.1, rel=0.1)
    loop.__init__()
    assert answers(emulated(jitter=0.5), loop, *[10] * 200)[0] == whens
    loop.__init__()
    assert answers(emulated(jitter=0.5, number=4), loop, *[10] * 200)[0] != whens


def test_a_liar_lies_in_its_share_of_answers(loop):
    teacher = emulated()
    teacher.lies = 0.25
    _, sent = answers(teacher, loop, *[5] * 400)
    wrong = sum(bool(arrays["logits"].any()) for arrays in sent)
    assert 70 <= wrong <= 130
    assert teacher.answered == 400


def test_a_link_has_its_latency_both_ways(loop):
    whens, sent = answers(emulated(jitter=0.0, latency_s=0.5, request_s=0.05), loop, 20, 10)
    assert whens == pytest.approx([1.25, 1.4])
    assert [arrays["took"][0] for arrays in sent] == pytest.approx([0.0, 0.25])


# What happens to them


class HostOnClock(Host):
    """Its teachers have no connections."""

    def __init__(self, **options):
        super().__init__(replace(TEACHERS, jitter=0.0, **options))
        self.gone = []
        for rate in self.config.rates:
            self.join(rate)

    def join(self, rate):
        number = self.started
        teacher = self.teachers[number] = EmulatedTeacher(
            number, rate, self.config, self.begin
        )
        teacher.classes, teacher.alive, self.started = 10, True, number + 1
        self.tasks[number] = SimpleNamespace(cancel=lambda: self.gone.append(number))
        self.note_capacity()

    def warn(self, victim):
        pass


def test_a_teacher_becomes_slow_hangs_and_is_lost_when_its_trace_says(loop):
    moves = (
        Move(at_s=1, slow=1, times=5.0, for_s=2),
        Move(at_s=5, hang=1, for_s=3),
        Move(at_s=10, lose=1),
    )
    host, answered = HostOnClock(teachers=1, moves=moves), []
    begin = loop.time() + 100.0  # nothing happens before somebody asks

    def ask():
        ids = {"ids": np.arange(10)}
        host.teachers[0].infer(ASKED, ids, lambda _: answered.append(loop.time() - begin))

    for at_s in (0.0, 1.5, 3.5, 4.95, 5.5, 9.95):
        loop.after(100.0 + at_s, ask)
    loop.run(1e9)
    # The fourth was computed when it hung, the fifth waited, the last was never answered.
    assert answered == pytest.approx([0.1, 2.0, 3.6, 8.05, 8.1])
    assert host.gone == [0]


def test_one_trace_is_for_simulated_and_for_emulated_teachers(loop):
    """Both kinds of teachers are slow, hang, go and come at the same times."""
    moves = (
        Move(at_s=2, slow=1, which="quickest", times=4.0, for_s=3),
        Move(at_s=3, hang=1, which="newest", for_s=4),
        Move(at_s=8, lose=1, which="newest", notice_s=1),
        Move(at_s=10, join=1, every_s=2),
        Move(at_s=11, lose=2, which="quickest"),
        Move(at_s=12, slow=1, which="newest"),
    )
    case = PoolCase(
        name="x", student=RateProfile(samples_per_second=1e4), teachers=3,
        teacher=RateProfile(samples_per_second=100.0), steps=400,
        more=(Fleet(teacher=RateProfile(samples_per_second=200.0), count=2),),
    )  # fmt: skip
    simulation = Simulation(EdlDist(cases=(case,), moves=moves), case)
    simulation.run()
    host = HostOnClock(teachers=3, more=((200.0, 2),), moves=moves)

    def ask_all():  # all serve, as in the simulation
        for teacher in list(host.teachers.values()):
            teacher.infer(ASKED, {"ids": np.arange(1)}, lambda _: None)
        if loop.time() < 30.0:
            loop.after(0.5, ask_all)

    ask_all()
    loop.run(30.0)
    for side, begin in ((simulation, 0.0), (host, 10.0)):
        rates = [
            [rate for at, rate in side.capacities if at - begin < second][-1]
            for second in (1.5, 2.5, 3.5, 4.5, 5.5, 7.5, 8.5, 9.5, 10.5, 11.5, 12.5, 14.5)
        ]
        assert rates == [700, 550, 350, 350, 500, 700, 700, 500, 600, 300, 310, 410]


def test_a_card_of_the_simulator_is_a_pool_of_emulated_teachers():
    spec = construct(EdlDist, compose_card("simulations/edl_dist/unlike"))
    pool = EmulatedPool(**vars(part_of(spec, Behaviour)))
    assert pool.moves == spec.moves
    how = vars(part_of(pool, EmulatedTeachers))
    config = EmulatedTeachersConfig(**how, scheduler="", host="", tls=None, scratch="")
    message = to_builtins(config)  # to their process
    assert from_builtins(EmulatedTeachersConfig, message).moves == spec.moves


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        (
            {"best_batch": 4, "least_batch": 8},
            "least_batch: is 8 samples and best_batch is 4",
        ),
        ({"more": ((-1.0, 2),)}, "more: has 2 teachers of -1 samples/s"),
        ({"latency_s": -0.1}, "latency_s: is -0.1, must be >= 0"),
    ],
)
def test_teachers_that_cannot_be(options, fault):
    with pytest.raises(SpecError, match=fault):
        EmulatedPool(**options)


def test_a_move_that_moves_nothing_is_a_mistake():
    with pytest.raises(SpecError, match="nothing happens"):
        Move(at_s=3)


@pytest.mark.parametrize(
    ("how", "t_t", "best", "least"),
    [
        ({}, 38.0, 32, 1),  # a request of 64 would take longer than half a second
        ({"request_s": 0.02}, 2000.0, 256, 128),  # a device that is far from busy
        ({"request_s": 0.02, "best_batch": 32}, 2000.0, 32, 32),
        ({"least_batch": 8}, 2.0, 2, 2),
        ({"least_batch": 8, "best_batch": 64}, 2.0, 64, 8),
    ],
)
def test_sizes_are_those_that_a_real_teacher_measures_or_as_given(how, t_t, best, least):
    assert Behaviour(**how).sizes(t_t, 256) == (best, least)


def test_what_could_be_had_is_the_lesser_of_demand_and_of_all_that_is_well():
    capacities = [(0.0, 50.0), (10.0, 200.0), (20.0, 40.0)]
    assert to_be_had(capacities, 100.0, 5.0, 25.0) == 5 * 50 + 10 * 100 + 5 * 40


# The process that holds them


class StillHost(Host):
    """Its teachers are names only."""

    async def _live(self, number, rate):
        self.teachers[number] = emulated(rate, number)
        try:
            await asyncio.sleep(3600)
        finally:
            del self.teachers[number]


def test_orders_bring_teachers_lose_them_and_make_one_lie(monkeypatch):
    sent = []
    monkeypatch.setattr(emulated_teachers, "announce", lambda **facts: sent.append(facts))
    RENEWALS.clear()

    async def settled():
        for _ in range(5):  # timers that are due, tasks that they start or end
            await asyncio.sleep(0.001)

    async def act():
        host = StillHost(TEACHERS)
        for rate in (100.0, 50.0, 25.0):
            host.join(rate)
        await settled()
        assert [teacher.t_t for teacher in host.teachers.values()] == [100.0, 50.0, 25.0]
        host.execute(EmulationOrder(lie=(1, 0.5)))
        assert [teacher.lies for teacher in host.teachers.values()] == [0.0, 0.5, 0.0]
        host.execute(EmulationOrder(moves=(Move(lose=1, which="quickest"), Move(join=1))))
        await settled()
        assert sorted(host.teachers) == [1, 2, 3]  # a name is given once
        assert host.teachers[3].t_t == TEACHERS.t_t
        RENEWALS.extend([0.3, 0.1])
        host.execute(EmulationOrder(figures=True))
        host.execute(EmulationOrder(figures=True))
        for task in host.tasks.values():
            task.cancel()
        return sorted(host.teachers)

    alive = [f"emulated-{n}" for n in asyncio.run(act())]
    first, second = sent
    assert (first["renewals"], first["alive"]) == ([0.1, 0.3], alive)
    assert second["renewals"] == []  # since the last question
    assert (
        first["capacities"][-1][1] == 75.0
    )  # of those left, before the new one has come up


# Students


def students(pool, *, check_share=0.001, **options):
    config = EmulatedStudentsConfig(
        **{
            "student": "s", "coordinator": pool.address, "tls": None,
            "inputs": "reference", "replies": "full", "top_k": 1, "classes": 10,
            "students": 1, "batch": 20, "batches": 12,
            "rules": Rules(t_s=1e6, lt=256, ut=2048, deadline_s=5.0, check_share=check_share),
        }
        | options
    )  # fmt: skip

    async def make():
        return EmulatedStudent("s", config, pool.wires(config))

    return pool.run(make())


@pytest.fixture
def pool(pool_here, deployment):
    """With two emulated teachers."""
    pool = pool_here(replace(deployment, reference=()))
    for number in range(2):
        pool.add_emulated(number, 1e5, replace(TEACHERS, jitter=0.0))
    until(lambda: [t.state for t in pool.status().teachers] == ["free"] * 2)
    return pool


def test_a_slow_one_says_so_and_one_that_hangs_is_lost_until_it_recovers(
    pool_here, deployment
):
    pool = pool_here(replace(deployment, reference=()), ttl_s=0.4)
    pool.add_emulated(0, 100.0, TEACHERS)
    (teacher,) = pool.emulated

    def read_states():
        return [(t.state, t.t_t) for t in pool.status().teachers]

    until(lambda: read_states() == [("free", 100.0)])
    teacher.times = 4.0
    until(lambda: read_states() == [("free", 25.0)])
    teacher.hangs_until = 1e12
    until(lambda: not read_states())
    teacher.hangs_until, teacher.times = 0.0, 1.0
    until(lambda: read_states() == [("free", 100.0)])
    pool.run(teacher.ask("leave"))
    until(lambda: read_states() == [("draining", 100.0)])


def test_a_student_gets_each_batch_once_and_trains_in_its_time(pool):
    student = students(pool)

    async def live():
        for work in (student.watch(), student.keep_ticking(), student.train()):
            student.spawn(work)

    pool.run(live())
    until(lambda: student.steps == 12 or student.failed)
    assert student.failed == ""
    assert set(student.delivered.values()) == {1}
    assert _lost(student) == 0
    assert len(student.ended) == 12
    assert sum(student.answers.values()) >= 12
    pool.call(lambda: [task.cancel() for task in list(student.background)])


def test_what_was_passed_over_is_counted_as_lost(pool):
    student = students(pool)
    pool.call(student.do, [Deliver(0, 0), Deliver(0, 3)])
    assert student.slots == 2
    assert _lost(student) == 2  # batches 1 and 2


def test_a_defect_and_a_lack_of_teachers_are_told(pool):
    student = students(pool)
    pool.call(student.do, [Fail(0, 3, "all are gone")])
    assert student.failed == "no teacher: all are gone"

    async def broken():
        raise ValueError("impossible")

    async def away():
        raise OSError("the scheduler is gone")

    student.failed = ""

    async def spawn(work):
        student.spawn(work)

    pool.run(spawn(away()))
    until(lambda: not student.background)
    assert student.failed == ""  # it is tried again
    pool.run(spawn(broken()))
    until(lambda: student.failed)
    assert "impossible" in student.failed


def test_a_liar_among_three_is_found(pool):
    """All honest ones answer zeros, so a student sees a lie in one look."""
    pool.add_emulated(2, 1e5, replace(TEACHERS, jitter=0.0))
    until(lambda: len(pool.status().ready) == 3)
    pool.emulated[1].lies = 1.0
    student = students(pool, check_share=1.0, batches=200)

    async def live():
        for work in (student.watch(), student.keep_ticking(), student.train()):
            student.spawn(work)

    pool.run(live())
    until(lambda: student.lied_at is not None or student.steps == 200)
    assert 1 <= student.lied_at <= student.lied_of
    pool.call(lambda: [task.cancel() for task in list(student.background)])
    assert student.failed == ""
