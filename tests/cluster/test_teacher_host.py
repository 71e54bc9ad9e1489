"""Dask workers that host teachers: which do, whom they start again, and how often."""

import asyncio
import pickle
from itertools import pairwise
from types import SimpleNamespace

import pytest
from scripted_children import Starts
from tests_support import until

from kdlab.cluster.teachers import teacher_host as module
from kdlab.cluster.teachers.teacher_host import TeacherHost, machine_of
from kdlab.cluster.transport.roles import FAILED, REFUSED, TEACHER, WITHDRAWN
from kdlab.codec import MessageError
from kdlab.testing.scripted import FakeClock


def worker(folder, resources=(TEACHER,), plugins=()):
    return SimpleNamespace(
        state=SimpleNamespace(total_resources=dict.fromkeys(resources, 1)),
        plugins=dict.fromkeys(plugins),
        local_directory=str(folder),
        scheduler=SimpleNamespace(address="tls://scheduler:1"),
        name="machine-3",
        address="tls://10.0.0.3:999",
    )


class Hosted:
    """A host on a worker, with all children that it started; each look advances its clock."""

    def __init__(self, folder, teachers=1, **of_worker):
        self.starts, self.clock = Starts(), FakeClock()
        self.host = TeacherHost(teachers, 2, {"ca": "x"}, start=self.starts)
        self.worker = worker(folder, **of_worker)

    async def __aenter__(self):
        self.host.setup(self.worker)
        if self.host.keeper is not None:
            self.host.keeper.close()  # the test says when it looks
            self.host.supervisor._clock = self.clock
        return self

    async def __aexit__(self, *_):
        self.host.teardown(self.worker)

    def look(self, seconds=1, code=None):
        """Look so often, a second apart; with a code, all living children die of it before."""
        for _ in range(seconds):
            for child in self.starts.alive if code is not None else ():
                child.die(code)
            self.clock.advance(1.0)
            self.host.update()


def hosted(folder, act=lambda hosted: None, **options):
    async def live():
        async with Hosted(folder, **options) as case:
            act(case)
        return case

    return asyncio.run(live())


def test_it_starts_its_teachers_where_the_worker_is_reached(tmp_path):
    first, second = (c.config for c in hosted(tmp_path, teachers=2).starts.children)
    assert (first.scheduler, first.host) == ("tls://scheduler:1", "10.0.0.3")
    assert (first.threads, first.tls, first.chaos) == (2, {"ca": "x"}, False)
    assert [machine_of(config.name) for config in (first, second)] == ["machine-3"] * 2
    assert first.name != second.name


def test_a_teacher_has_as_many_threads_as_it_is_told(tmp_path):
    (child,) = hosted(tmp_path).starts.children
    assert child.options["environment"] == {"OMP_NUM_THREADS": "2"}


@pytest.mark.parametrize("of_worker", [{"resources": ()}, {"plugins": ("kdlab-teacher",)}])
def test_workers_of_other_roles_and_teachers_themselves_host_none(tmp_path, of_worker):
    case = hosted(tmp_path, **of_worker)
    assert case.host.keeper is None
    assert case.starts.children == []
    assert list(tmp_path.iterdir()) == []


def test_teachers_and_their_files_go_with_the_worker(tmp_path):
    def look(case):
        assert list(tmp_path.iterdir()) == [case.host.folder]

    case = hosted(tmp_path, look, teachers=2)
    assert [child.stops for child in case.starts.children] == [1, 1]
    assert list(tmp_path.iterdir()) == []


def test_one_that_dies_comes_back_later_each_time(tmp_path):
    at = []

    def look(case):
        case.starts.then = lambda child: at.append(case.clock())
        case.look(70, code=FAILED)

    hosted(tmp_path, look)
    assert [b - a for a, b in pairwise(at)] == [3.0, 5.0, 9.0, 17.0, 33.0]


def test_one_that_dies_at_once_is_left_alone_in_the_end(tmp_path, caplog):
    """It was started again for ever: each start takes a core for seconds."""

    def look(case):
        case.look(600, code=FAILED)
        assert len(case.starts.children) == 1 + 10

    with caplog.at_level("WARNING", "kdlab"):
        hosted(tmp_path, look)
    *earlier, last = caplog.messages
    assert len(earlier) == 10
    assert earlier[2].startswith("A teacher is lost and restarts in 4 s: it ended")
    assert all(f"exit code {FAILED}" in why for why in earlier)
    assert last.startswith("A teacher is given up after 10 restarts in 900 s: it ended")
    assert f"exit code {FAILED}" in last


def test_the_pipes_of_one_that_died_are_closed(tmp_path):
    def look(case):
        case.look(2, code=FAILED)
        assert case.starts.children[0].stops == 1

    hosted(tmp_path, look)


def test_one_that_dies_now_and_then_always_comes_back(tmp_path):
    def look(case):
        for _ in range(50):
            case.look(code=FAILED)
            case.look(120)
            assert len(case.starts.alive) == 1

    hosted(tmp_path, look)


def test_one_that_cannot_be_started_is_tried_again(tmp_path):
    def look(case):
        def no_room(child):
            child.die(FAILED)
            raise OSError(12, "Cannot allocate memory")

        case.starts.then = no_room
        case.look(code=FAILED)
        case.look(1)
        case.starts.then = lambda child: None
        case.look(3)
        assert len(case.starts.alive) == 1

    hosted(tmp_path, look)


def test_what_a_teacher_prints_by_mistake_ends_no_keeping(tmp_path, caplog, monkeypatch):
    """An import that prints a banner, say: it is said once, and all are looked after as before."""
    monkeypatch.setattr(module, "_TICK_S", 0.001)
    starts = Starts()
    host = TeacherHost(1, 1, None, start=starts)
    host.setup(worker(tmp_path))
    try:
        (child,) = starts.children
        odd = iter([MessageError("It is no JSON: a banner")])

        def messages():
            for error in odd:
                raise error
            return []

        child.messages = messages
        until(lambda: "It is no JSON: a banner" in caplog.text)
        child.die(FAILED)
        until(lambda: len(starts.children) == 2)
    finally:
        host.teardown(None)


def test_no_look_is_under_way_once_the_worker_is_gone(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_TICK_S", 0.001)
    host = TeacherHost(1, 1, None, start=Starts())
    host.setup(worker(tmp_path))
    host.teardown(None)
    assert not host.keeper.is_alive()
    assert host.supervisor.children == {}


def test_restarts_are_counted_for_each_teacher(tmp_path):
    def look(case):
        case.look(600, code=FAILED)
        assert len(case.starts.children) == 2 * (1 + 10)

    hosted(tmp_path, look, teachers=2)


@pytest.mark.parametrize("code", [WITHDRAWN, REFUSED])
def test_who_was_meant_to_end_is_not_started_again(tmp_path, code):
    def look(case):
        case.starts.children[0].die(code)
        case.look(100)
        assert len(case.starts.children) == 2
        case.starts.children[1].die(FAILED)
        case.look(2)
        assert len(case.starts.alive) == 1

    hosted(tmp_path, look, teachers=2)


def test_it_travels_to_the_workers():
    host = pickle.loads(pickle.dumps(TeacherHost(2, 1, None)))
    assert (host.teachers, host.threads) == (2, 1)
