"""Machines by the demand of a pool: grown, given back, and asked for again after a failure."""

from itertools import pairwise

import pytest
from pool_status import status, teacher

from kdlab.cluster.demand import DemandFollower, pool_state
from kdlab.errors import ClusterError, SchedulerUnreachable
from kdlab.papers.edl_dist.beyond.pool_size import PoolSize


class Machines:
    """Machines that come at once when asked for; `failure`, if set, is raised instead."""

    def __init__(self):
        self.count, self.given_back, self.failure, self.asked = 0, [], None, []

    at_once = 100

    def lost(self):
        return False

    def wanted(self):
        return self.count

    def grow(self, count):
        self.asked.append(count)
        if self.failure is not None:
            raise self.failure
        self.count += count

    def withdraw(self, names):
        self.given_back += names
        self.count -= len(names)


class Case:
    def __init__(self, least=0, most=4, idle_s=10.0):
        self.machines, self.status, self.now = Machines(), status(), 0.0
        self.follower = DemandFollower(
            self.machines, self._status, PoolSize(least, most, idle_s)
        )

    def _status(self):
        if isinstance(self.status, Exception):
            raise self.status
        return self.status

    def after(self, seconds):
        """Return how many machines the follower asks for after so many seconds."""
        self.now += seconds
        before = len(self.machines.asked)
        self.follower.update(self.now)
        return sum(self.machines.asked[before:])


def hosted(*names, state="free", t_t=100.0):
    return [teacher(f"{name}.77.0", state, t_t) for name in names]


def test_none_is_there_before_somebody_searches():
    case = Case()
    assert case.after(0.5) == case.after(60) == 0
    case.status = status(missing=1000.0)
    assert case.after(0.5) == 1


def test_it_grows_by_what_is_missing_and_what_a_machine_gives():
    case = Case(most=10)
    case.status = status(*hosted("a", state="assigned"), missing=250.0)
    case.machines.count = 1
    assert case.after(0.5) == 3
    assert case.after(0.5) == 0  # they are on their way


def test_the_least_is_there_always():
    case = Case(least=2)
    assert case.after(0.5) == 2


def test_each_of_the_first_is_started_once_whatever_becomes_of_it():
    """Teachers that refuse one after the other: none comes in their place."""
    machines, size = Machines(), PoolSize(8, 8)
    machines.at_once = machines.count = 4

    def one_refuses():
        if machines.count:
            machines.count -= 1
            size.least = size.most = size.least - 1
        return False

    machines.lost = one_refuses
    follower = DemandFollower(machines, status, size, rest=4)
    for look in range(60):
        follower.update(look / 2)
    assert sum(machines.asked) == 4
    assert (machines.count, size.least, size.most) == (0, 0, 0)


def test_machines_that_are_idle_are_given_back_and_others_not():
    case = Case(idle_s=10.0)
    case.machines.count = 2
    case.status = status(*hosted("idle"), *hosted("used", state="assigned"))
    for _ in range(3):
        case.after(5)
    assert case.machines.given_back == ["idle"]


def test_a_machine_with_one_teacher_in_use_is_in_use():
    level = pool_state(
        status(
            teacher("m.1.0", "free", 100.0),
            teacher("m.1.1", "assigned", 50.0),
            teacher("n.1.0", "free", 30.0),
            teacher("o.1.0", "registered"),
        ),
        alive=4,
        now=7.0,
    )
    assert level.free == {"n": 30.0}
    assert level.t_t == (150.0 + 30.0) / 2  # of a machine, with all its teachers
    assert (level.alive, level.starting, level.time) == (4, 2, 7.0)


def test_machines_that_cannot_be_had_are_asked_for_later_each_time(caplog):
    case = Case()
    case.machines.failure = ClusterError("the queue is closed.")
    case.status = status(missing=1000.0)
    asked_at = []
    while len(asked_at) < 8:
        if case.after(0.5):
            asked_at.append(case.now)
    gaps = [later - before for before, later in pairwise(asked_at)]
    assert gaps == [1, 2, 4, 8, 16, 32, 60]
    assert "pool: the queue is closed. Retry in 1 s." in caplog.text


def test_after_a_success_the_pauses_begin_anew():
    case = Case(most=9)
    case.status = status(missing=1000.0)
    case.machines.failure = ClusterError("not now")
    for seconds in (0.5, 1, 2):
        assert case.after(seconds) == 1
    case.machines.failure = None
    assert case.after(4) == 1
    case.status = status(*hosted("a", state="assigned"))
    case.after(0.5)  # it is there
    case.status, case.machines.count = status(missing=50.0), 0  # it was lost
    case.machines.failure = ClusterError("not now")
    assert case.after(0.5) == 1
    assert case.after(1) == 1


def test_a_scheduler_that_is_away_is_waited_for():
    case = Case()
    case.status = SchedulerUnreachable("tls://there:1", 5.0, "refused")
    with pytest.raises(SchedulerUnreachable):  # its keeper says so
        case.after(0.5)
    case.status = status(missing=1.0)
    assert case.after(0.5) == 1  # without a pause
