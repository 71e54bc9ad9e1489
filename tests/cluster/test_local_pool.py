"""Teachers on this machine: who is started, who comes back and when, who is withdrawn."""

import signal
from types import SimpleNamespace

import pytest
from pool_status import status, teacher
from scripted_children import Starts

from kdlab.cluster.child_configs import TeacherConfig
from kdlab.cluster.local_pool import LocalPool
from kdlab.cluster.pool import RunningPool
from kdlab.cluster.transport.roles import FAILED, REFUSED, WITHDRAWN
from kdlab.cluster.transport.security import Tls
from kdlab.config.home import home
from kdlab.errors import ClusterError, RunStopped
from kdlab.testing.scripted import FakeClock

ADDRESS = "tls://127.0.0.1:4321"


@pytest.fixture
def tls(tmp_path):
    """Certificates as of a user: nothing is made, and nothing is deleted."""
    paths = {name: tmp_path / name for name in ("ca", "cert", "key")}
    for path in paths.values():
        path.touch()
    return Tls(**{name: str(path) for name, path in paths.items()})


class Case:
    """A pool without processes at second 100; its coordinator answers `status`."""

    def __init__(self, folder, **spec):
        self.clock, self.starts, self.status = FakeClock(100.0), Starts(), status()
        self.schedulers, self.how = Starts(), []
        self.pool = RunningPool(
            LocalPool(**spec),
            SimpleNamespace(teacher="fingerprint"),
            folder,
            start=self.starts,
            start_scheduler=self._scheduler,
            status=lambda address, tls: self.status,
            now=self.clock,
        )

    def _scheduler(self, deployment, folder, **how):
        self.how.append(how)
        return self.schedulers("scheduler", None, folder), ADDRESS

    def after(self, seconds):
        """Return how many teachers the pool starts when it looks again after so long."""
        before = len(self.starts.children)
        self.clock.advance(seconds)
        self.pool.update()
        return len(self.starts.children) - before


@pytest.fixture
def case(tmp_path, tls):
    cases = []

    def make(**spec):
        cases.append(Case(tmp_path / "pool", **{"tls": tls} | spec))
        return cases[-1]

    yield make
    for case in cases:
        case.pool.close()


def test_each_teacher_is_told_where_the_scheduler_is_and_who_it_is(case, tls, tmp_path):
    starts = case(teachers=2, threads=3, chaos=True).starts
    assert [child.module for child in starts.children] == [
        "kdlab.cluster.teachers.teacher_server"
    ] * 2
    first, second = (child.config for child in starts.children)
    assert first == TeacherConfig(
        scheduler=ADDRESS,
        name="teacher-0",
        host="127.0.0.1",
        threads=3,
        scratch=str(tmp_path / "pool" / "scratch"),
        device="auto",
        number=0,
        tls=tls.files(tmp_path),
        chaos=True,
    )
    assert (second.name, second.number) == ("teacher-1", 1)
    assert starts.children[0].options == {"environment": {"OMP_NUM_THREADS": "3"}}
    assert starts.children[1].log == tmp_path / "pool" / "teacher-1.log"


def test_its_scheduler_keeps_the_leases_as_long_as_it_was_told(case, tls, tmp_path):
    (how,) = case(ttl_s=9.0, store="/somewhere/leases.json", start_s=7.0).how
    assert how == {
        "ttl_s": 9.0,
        "tls": tls.files(tmp_path),
        "store": "/somewhere/leases.json",
        "port": 0,
        "start_s": 7.0,
    }


def test_four_start_at_once_and_the_others_as_these_are_ready(case):
    pool = case(teachers=6)
    assert len(pool.starts.children) == 4
    assert pool.after(1) == 0
    pool.status = status(teacher("a"), teacher("b"), teacher("c", "registered"))
    assert pool.after(1) == 2
    pool.status = status(*map(teacher, "abcdef"))
    assert pool.after(1) == 0


def test_who_dies_comes_back_later_each_time(case):
    pool = case(teachers=1)
    waits = []
    for _ in range(8):
        pool.starts.children[-1].die(FAILED)
        waits.append(0)
        while not pool.after(0.5):  # it looks twice a second
            waits[-1] += 0.5
    assert waits == [1, 2, 4, 8, 16, 32, 60, 60]


def test_why_one_died_is_said_at_once_and_its_pipes_are_closed(case, caplog):
    pool = case(teachers=2)
    dead, left = pool.starts.children
    dead.die(-9)
    left.die(WITHDRAWN)
    with caplog.at_level("WARNING", "kdlab"):
        pool.after(0)
        pool.after(0)
    assert caplog.messages == ["it died (exit code -9)"]
    assert (dead.stops, left.stops) == (1, 1)


def test_a_teacher_that_became_ready_begins_the_count_anew(case):
    pool = case(teachers=1)
    for _ in range(3):
        pool.starts.children[-1].die()
        pool.after(0)
        assert pool.after(60) == 1
    pool.status = status(teacher("teacher-3"))
    pool.after(0.5)
    pool.starts.children[-1].die()
    pool.status = status()
    assert pool.after(0) == 0
    assert pool.after(1) == 1


@pytest.mark.parametrize("code", [WITHDRAWN, REFUSED])
def test_who_was_meant_to_end_stays_away(case, code):
    pool = case(teachers=2)
    pool.starts.children[0].die(code)
    assert pool.after(0) == pool.after(100) == 0
    assert len(pool.starts.alive) == 1


@pytest.mark.parametrize("spec", [{"replace_lost": False}, {"chaos": True}])
def test_nobody_comes_back_where_that_is_not_wanted(case, spec):
    pool = case(teachers=2, **spec)
    pool.starts.children[0].die()
    assert pool.after(0) == pool.after(100) == 0


def test_a_scheduler_that_dies_comes_back_at_its_port(case):
    pool = case(teachers=1)
    dead = pool.pool.scheduler
    dead.die()
    pool.after(0.5)
    assert [how["port"] for how in pool.how] == [0, 4321]
    assert pool.pool.scheduler is not dead
    assert dead.stops == 1  # its pipes are closed
    assert pool.starts.alive  # teachers keep their models meanwhile


def test_it_grows_to_what_students_miss_and_no_further(case):
    pool = case(teachers=0, least=0, most=3)
    assert pool.after(0.5) == 0
    pool.status = status(missing=1e9)
    assert pool.after(0.5) == 1  # how quick one is is not known yet
    pool.status = status(teacher("teacher-0", "assigned", 100.0), missing=1e9)
    assert pool.after(0.5) == 2
    assert pool.after(0.5) == 0


def test_one_that_is_idle_is_told_to_leave(case):
    pool = case(teachers=2, least=1, most=2, idle_s=10.0)
    slow, quick = pool.starts.children
    pool.status = status(
        teacher("teacher-0", t_t=50.0, pid=slow.pid), teacher("teacher-1", pid=quick.pid)
    )
    for _ in range(3):
        pool.after(6)
    assert slow.signals == [signal.SIGTERM]  # it drains first
    assert quick.signals == []


def test_a_pool_whose_teachers_have_all_ended_says_why(case):
    pool = case(teachers=1)
    pool.starts.children[0].die(REFUSED)
    with pytest.raises(ClusterError, match="ended before it could serve"):
        pool.pool.machines.check_hope()
    pool.pool.machines.add()
    pool.pool.machines.check_hope()  # there is hope


def test_without_a_first_teacher_nobody_waits(case):
    pool = case(teachers=0, least=0, most=2)
    assert pool.pool.wait() is pool.status


def test_a_stop_is_heard_while_teachers_start(case):
    with pytest.raises(RunStopped, match="while teachers were starting"):
        case(teachers=1).pool.wait(lambda: True)


def test_closing_ends_all_and_leaves_nothing_but_logs(case, tls, tmp_path):
    pool = case(teachers=2)
    scratch = tmp_path / "pool" / "scratch"
    scratch.mkdir(parents=True)
    (note,) = (home() / "pools").glob("127.0.0.1-4321.json")
    pool.pool.close()
    assert all(child.stops == 1 for child in pool.starts.children)
    assert pool.schedulers.children[0].stops == 1
    assert not scratch.exists()
    assert not note.exists()
    assert all((tmp_path / name).exists() for name in ("ca", "cert", "key"))  # a user's


def test_certificates_that_were_made_for_it_go_with_it(case, tmp_path):
    pool = case(teachers=1, tls=None).pool
    files = [tmp_path / path for path in pool.tls.values()]
    assert all(path.exists() for path in files)
    assert set(pool.tls) == {"ca", "cert", "key", "token"}
    pool.close()
    assert not any(path.exists() for path in files)


def test_a_teacher_that_cannot_be_started_leaves_no_other_behind(tmp_path, tls):
    starts, schedulers = Starts(), Starts()

    def start(*args, **options):
        if len(starts.children) == 2:
            raise OSError("no more processes")
        return starts(*args, **options)

    with pytest.raises(OSError, match="no more processes"):
        RunningPool(
            LocalPool(teachers=3, tls=tls),
            SimpleNamespace(teacher="fingerprint"),
            tmp_path / "pool",
            start=start,
            start_scheduler=lambda *_, **how: (schedulers("", None, tmp_path), ADDRESS),
        )
    assert not starts.alive
    assert not schedulers.alive
