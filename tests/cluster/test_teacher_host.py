"""Dask workers that host teachers: which do, whom they start again, and how often."""

import asyncio
import pickle
from types import SimpleNamespace

import pytest
from scripted_children import Starts

from kdlab.cluster.teachers.teacher_host import TeacherHost, machine_of
from kdlab.cluster.wires.roles import FAILED, REFUSED, TEACHER, WITHDRAWN


def worker(folder, resources=(TEACHER,), plugins=()):
    return SimpleNamespace(
        state=SimpleNamespace(total_resources=dict.fromkeys(resources, 1)),
        plugins=dict.fromkeys(plugins),
        local_directory=str(folder),
        scheduler=SimpleNamespace(address="tls://scheduler:1"),
        name="machine-3",
        address="tls://10.0.0.3:999",
    )


def hosted(folder, act, teachers=1, **of_worker):
    """What `act` makes of a host on such a worker; with all that it started."""
    starts = Starts()
    host = TeacherHost(teachers, 2, {"ca": "x"}, start=starts)

    async def live():
        on = worker(folder, **of_worker)
        host.setup(on)
        if host.keeping is not None:
            host.keeping.cancel()  # the test says when it looks
        await act(host, starts)
        host.teardown(on)

    asyncio.run(live())
    return host, starts


async def nothing(host, starts):
    await asyncio.sleep(0)


def test_it_starts_its_teachers_where_the_worker_is_reached(tmp_path):
    async def look(host, starts):
        await host.look(0.0)
        assert len(starts.children) == 2

    _, starts = hosted(tmp_path, look, teachers=2)
    first, second = (child.config for child in starts.children)
    assert (first.scheduler, first.host) == ("tls://scheduler:1", "10.0.0.3")
    assert (first.threads, first.tls, first.chaos) == (2, {"ca": "x"}, False)
    assert [machine_of(config.name) for config in (first, second)] == ["machine-3"] * 2
    assert first.name != second.name
    assert starts.children[0].options["environment"] == {"OMP_NUM_THREADS": "2"}


@pytest.mark.parametrize("of_worker", [{"resources": ()}, {"plugins": ("kdlab-teacher",)}])
def test_workers_of_other_roles_and_teachers_themselves_host_none(tmp_path, of_worker):
    host, starts = hosted(tmp_path, nothing, **of_worker)
    assert host.keeping is None
    assert starts.children == []
    assert list(tmp_path.iterdir()) == []


def test_teachers_and_their_files_go_with_the_worker(tmp_path):
    async def look(host, starts):
        await host.look(0.0)
        assert list(tmp_path.iterdir()) == [host.folder]

    _, starts = hosted(tmp_path, look, teachers=2)
    assert [child.stops for child in starts.children] == [1, 1]
    assert list(tmp_path.iterdir()) == []


def test_one_that_dies_at_once_is_started_a_few_times_a_minute(tmp_path):
    """It was started again each second, for ever: each start takes a core for seconds."""
    counts = []

    async def look(host, starts):
        await host.look(0.0)
        for second in range(180):
            for child in starts.alive:
                child.die(FAILED)
            await host.look(float(second))
            if second % 60 == 59:
                counts.append(len(starts.children))

    hosted(tmp_path, look)
    assert counts == [1 + 3, 1 + 6, 1 + 9]


def test_restarts_are_counted_for_each_teacher(tmp_path):
    async def look(host, starts):
        await host.look(0.0)
        for second in range(4):
            for child in starts.alive:
                child.die(FAILED)
            await host.look(float(second))
        assert len(starts.children) == 2 + 6

    hosted(tmp_path, look, teachers=2)


@pytest.mark.parametrize("code", [WITHDRAWN, REFUSED])
def test_who_was_meant_to_end_is_not_started_again(tmp_path, code):
    async def look(host, starts):
        await host.look(0.0)
        starts.children[0].die(code)
        await host.look(100.0)
        assert len(starts.children) == 2
        starts.children[1].die(FAILED)
        await host.look(101.0)
        assert len(starts.alive) == 1

    hosted(tmp_path, look, teachers=2)


def test_it_travels_to_the_workers():
    host = pickle.loads(pickle.dumps(TeacherHost(2, 1, None)))
    assert (host.teachers, host.wanted) == (2, 2)
