"""Emulated teachers and students: what they answer and when, who lies, who comes and goes."""

import asyncio
from dataclasses import replace

import numpy as np
import pytest
from tests_support import until

from kdlab.cluster.child_configs import EmulatedStudentsConfig, EmulatedTeachersConfig
from kdlab.cluster.reader.emulated_students import EmulatedStudent, _lost
from kdlab.cluster.teachers import emulated_teachers
from kdlab.cluster.teachers.emulated_teachers import (
    RENEWALS,
    EmulatedTeacher,
    EmulationOrder,
    Host,
)
from kdlab.papers.edl_dist.reader_instructions import Deliver, Fail

TEACHERS = EmulatedTeachersConfig(
    scheduler="tcp://there:1", host="127.0.0.1", tls=None, scratch="", teachers=1, t_t=100.0
)
ASKED = {"epoch": 0, "replies": "full"}


class Loop:
    """Keeps what is to be called, and when."""

    def __init__(self):
        self.now, self.calls = 10.0, []

    def time(self):
        return self.now

    def call_at(self, when, function, *arguments):
        self.calls.append((when, function, arguments))


@pytest.fixture
def loop(monkeypatch):
    loop = Loop()
    monkeypatch.setattr(emulated_teachers.asyncio, "get_running_loop", lambda: loop)
    return loop


def answers(teacher, loop, *sizes):
    """(seconds after the first was asked, arrays) of requests that come together."""
    said = []
    for size in sizes:
        teacher.infer(ASKED, {"ids": np.arange(size)}, said.append)
    for when, function, arguments in loop.calls:
        loop.now = when
        function(*arguments)
    return [when - 10.0 for when, *_ in loop.calls], said


def emulated(rate=100.0, number=3, **options):
    teacher = EmulatedTeacher(number, rate, replace(TEACHERS, **options))
    teacher.classes = 10
    return teacher


def test_requests_take_their_time_one_after_the_other(loop):
    whens, said = answers(emulated(jitter=0.0), loop, 20, 10)
    assert whens == pytest.approx([0.2, 0.3])
    assert [arrays["logits"].shape for arrays in said] == [(20, 10), (10, 10)]
    assert not any(arrays["logits"].any() for arrays in said)
    queued, _, computed = said[1]["took"]
    assert (queued, computed) == pytest.approx((0.2, 0.1))


def test_times_are_spread_around_their_mean_and_the_same_for_a_seed(loop):
    whens, _ = answers(emulated(jitter=0.5), loop, *[10] * 200)
    taken = np.diff([0.0, *whens])
    assert 0.05 <= taken.min() < taken.max() <= 0.15
    assert taken.mean() == pytest.approx(0.1, rel=0.1)
    loop.calls, loop.now = [], 10.0
    assert answers(emulated(jitter=0.5), loop, *[10] * 200)[0] == whens
    loop.calls, loop.now = [], 10.0
    assert answers(emulated(jitter=0.5, number=4), loop, *[10] * 200)[0] != whens


def test_a_liar_lies_in_its_share_of_answers(loop):
    teacher = emulated()
    teacher.lies = 0.25
    _, said = answers(teacher, loop, *[5] * 400)
    wrong = sum(bool(arrays["logits"].any()) for arrays in said)
    assert 70 <= wrong <= 130
    assert teacher.answered == 400


# The process that holds them


class StillHost(Host):
    """Its teachers are names only."""

    async def _live(self, number, rate):
        self.workers[number] = self.teachers[number] = emulated(rate, number)
        try:
            await asyncio.sleep(3600)
        finally:
            del self.workers[number], self.teachers[number]


def test_orders_bring_teachers_lose_them_and_make_one_lie(monkeypatch):
    told = []
    monkeypatch.setattr(emulated_teachers, "announce", lambda **facts: told.append(facts))
    RENEWALS.clear()

    async def act():
        host = StillHost(TEACHERS)
        host.hear(EmulationOrder(join=(100.0, 50.0, 25.0)))
        await asyncio.sleep(0)
        assert [teacher.rate for teacher in host.teachers.values()] == [100.0, 50.0, 25.0]
        host.hear(EmulationOrder(lie=(1, 0.5)))
        assert [teacher.lies for teacher in host.teachers.values()] == [0.0, 0.5, 0.0]
        host.hear(EmulationOrder(lose=1, join=(7.0,)))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert len(host.teachers) == 3
        assert host.teachers[3].rate == 7.0  # a name is given once
        RENEWALS.extend([0.3, 0.1])
        host.hear(EmulationOrder(figures=True))
        host.hear(EmulationOrder(figures=True))
        for task in host.tasks.values():
            task.cancel()
        return sorted(host.teachers)

    alive = [f"emulated-{n}" for n in asyncio.run(act())]
    assert told == [
        {"renewals": [0.1, 0.3], "alive": alive},
        {"renewals": [], "alive": alive},  # since the last question
    ]


# Students


def students(pool, **options):
    config = EmulatedStudentsConfig(
        **{
            "student": "s", "coordinator": pool.address, "tls": None,
            "inputs": "reference", "replies": "full", "top_k": 1, "classes": 10,
            "deadline_s": 5.0, "t_s": 1e6, "students": 1, "batch": 20, "batches": 12,
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


def test_a_student_gets_each_batch_once_and_trains_in_its_time(pool):
    student = students(pool)

    async def live():
        for work in (student.watch(), student.look(), student.train()):
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
    student = students(pool, rules={"check_share": 1.0}, batches=200)

    async def live():
        for work in (student.watch(), student.look(), student.train()):
            student.spawn(work)

    pool.run(live())
    until(lambda: student.lied_at is not None or student.steps == 200)
    assert 1 <= student.lied_at <= student.lied_of
    pool.call(lambda: [task.cancel() for task in list(student.background)])
    assert student.failed == ""
