"""Orders about teachers: carried out once, by name, and not those of an earlier session."""

import signal

import pytest

from kdlab.changes.change import (
    CONTROL,
    AddTeacher,
    DrainTeacher,
    KillTeacher,
    Pause,
    append,
)
from kdlab.cluster.chaos import Target
from kdlab.errors import ClusterError
from kdlab.experiment.chaos_targets import OwnTargets
from kdlab.experiment.teacher_changes import TeacherChanges


@pytest.fixture
def case(tmp_path, local_pool):
    """Orders since second 100, for a pool of two teachers; (order, events, signals, pool)."""
    pool, events, signals = local_pool(teachers=2), [], []

    def targets(of):
        known = {
            child.pid: Target(f"teacher-{number}", child.pid)
            for number, child in enumerate(of.machines.children)
        }
        return OwnTargets(of, find_targets=lambda address, tls: known)

    reader = TeacherChanges(
        tmp_path / CONTROL,
        pool,
        events.append,
        since=100.0,
        targets=targets,
        kill=lambda pid, number: signals.append((pid, number)),
    )

    def order(kind, time=101.0, **facts):
        append(tmp_path, kind(time=time, member="served/seed0", **facts))
        reader.poll()

    return order, events, signals, pool


def test_a_teacher_more_is_started_and_said(case):
    order, events, _, pool = case
    order(AddTeacher)
    assert len(pool.machines.children) == 3
    assert [(e.KIND, e.by, e.pid) for e in events] == [
        ("teacher_added", "user", pool.machines.children[2].pid)
    ]


def test_a_teacher_is_drained_politely_and_killed_at_once(case):
    order, events, signals, pool = case
    order(DrainTeacher, name="teacher-0")
    order(KillTeacher, name="teacher-1")
    first, second = pool.machines.children
    assert first.signals == [signal.SIGTERM]
    assert signals == [(second.pid, signal.SIGKILL)]
    assert [(e.KIND, e.target) for e in events] == [
        ("teacher_drained", "teacher-0"),
        ("chaos_caused", "teacher-1"),
    ]
    assert events[1].kind == "kill_teacher"


def test_one_that_is_gone_is_said_and_nobody_else_is_hit(case):
    order, events, signals, pool = case
    pool.machines.children[0].die()
    order(KillTeacher, name="teacher-0")
    order(DrainTeacher, name="teacher-7")
    assert signals == []
    assert [e.message for e in events] == [
        "No teacher teacher-0 runs on this machine.",
        "No teacher teacher-7 runs on this machine.",
    ]


def test_orders_of_an_earlier_session_and_of_the_loop_are_left_alone(case):
    order, events, signals, pool = case
    order(AddTeacher, time=99.0)
    order(Pause)
    assert (events, signals, len(pool.machines.children)) == ([], [], 2)


def test_an_order_that_fails_is_said_and_the_next_is_heard(case):
    order, events, _, pool = case

    def fails():
        raise ClusterError("no room")

    machines = pool.machines
    add, machines.add = machines.add, fails
    order(AddTeacher)
    machines.add = add
    order(AddTeacher)
    assert events[0].message == "add_teacher failed: ClusterError('no room')"
    assert [e.KIND for e in events] == ["warned", "teacher_added"]


def test_started_it_follows_until_it_is_closed(case, tmp_path, local_pool):
    events = []
    reader = TeacherChanges(tmp_path / CONTROL, local_pool(), events.append, 0.0).start()
    assert reader._keeper.is_alive()
    reader.close()
    assert not reader._keeper.is_alive()
