"""A pool that somebody else keeps: a Dask scheduler, here in a thread, that a run joins."""

import asyncio
import threading
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from scripted_children import Starts
from tests_support import free_port

from kdlab.cluster.coordination.coordinator import Coordinator
from kdlab.cluster.coordination.scheduler_process import QuietScheduler
from kdlab.cluster.pool import RunningPool
from kdlab.cluster.remote_pool import RemotePool
from kdlab.cluster.schedulers import (
    deploy,
    has_coordinator,
    install,
    send_weights,
    start_scheduler,
    status_of,
)
from kdlab.cluster.teachers.teacher_host import TeacherHost
from kdlab.cluster.transport.wire import ask, check_address
from kdlab.config.seal import file_sha256
from kdlab.errors import (
    ClusterError,
    RunStopped,
    SchedulerUnreachable,
    SpecError,
    TeacherRefused,
)
from kdlab.testing.scripted import FakeClock


class Running:
    """A scheduler in a thread of its own; `run` runs a coroutine in its event loop."""

    def __init__(self, port=0):
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()
        self.scheduler = self.run(self._up(port))
        self.address = self.scheduler.address

    async def _up(self, port):
        return await QuietScheduler(
            host=f"tcp://127.0.0.1:{port}", dashboard=False, dashboard_address=None
        )

    def run(self, work):
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(60)

    def close(self):
        async def end():
            plugin = getattr(self.scheduler, "kdlab_coordinator", None)
            if plugin is not None:
                await plugin.close()
            await self.scheduler.close()

        self.run(end())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()


@pytest.fixture
def running():
    schedulers = []

    def start(port=0):
        schedulers.append(Running(port))
        return schedulers[-1]

    yield start
    for scheduler in schedulers:
        if not scheduler.loop.is_closed():
            scheduler.close()


@pytest.fixture
def joined(tmp_path):
    """Makes pools that look after themselves only when they are asked to."""
    pools = []

    def join(running, deployment, **spec):
        patch.setenv("KDLAB_ADDRESSES", running.address)
        pool = RemotePool(address=running.address, insecure=True, **spec)
        pools.append(RunningPool(pool, deployment, tmp_path / "pool"))
        return pools[-1]

    with pytest.MonkeyPatch.context() as patch:
        # Dask tries for so long to reach a scheduler that is gone.
        patch.setattr("kdlab.cluster.schedulers.ask", partial(ask, wait_s=0.5))
        yield join
    for pool in pools:
        pool.close()


def plugins_of_workers(running):
    return set(running.scheduler.worker_plugins) - {"shuffle"}  # Dask's own


def test_a_plain_scheduler_is_made_a_coordinator_once(running, tmp_path):
    dask = running()
    assert not has_coordinator(dask.address)
    journal = tmp_path / "journal.jsonl"
    install(dask.address, None, Coordinator(9.0, journal=str(journal)))
    assert has_coordinator(dask.address)
    plugin = dask.scheduler.kdlab_coordinator
    assert plugin.leases.ttl_s == 9.0
    assert journal.exists()
    install(dask.address, None, Coordinator(1.0))  # the one that is there keeps its own
    assert dask.scheduler.kdlab_coordinator is plugin


def test_it_has_no_pages(running):
    scheduler = running().scheduler
    assert not scheduler.http_server._sockets
    assert scheduler.http_application.wildcard_router.rules == []


def test_a_run_publishes_what_it_needs_and_sends_the_weights(running, joined, deployment):
    dask = running()
    pool = joined(dask, deployment)
    assert status_of(dask.address, None).deployed == deployment.fingerprint
    (member,) = deployment.members
    shelf = dask.scheduler.kdlab_coordinator.shelf
    assert file_sha256(shelf.folder / member.sha256) == member.sha256
    assert pool.teacher == deployment.teacher
    assert plugins_of_workers(dask) == set()  # `kdlab teacher` starts teachers


def test_workers_of_that_role_are_made_hosts(running, joined, deployment):
    dask = running()
    joined(dask, deployment, workers=2, threads=3)
    assert plugins_of_workers(dask) == {TeacherHost.name}


def test_what_a_new_scheduler_does_not_know_is_said_again(running, joined, deployment):
    port = free_port()
    dask = running(port)
    pool = joined(dask, deployment)
    assert pool._serves()
    dask.close()
    with pytest.raises(SchedulerUnreachable):
        pool.update()  # its keeper says so
    again = running(port)
    assert not pool._serves()  # it is no coordinator
    pool.update()
    assert pool._serves()
    assert status_of(again.address, None).deployed == deployment.fingerprint


def test_a_scheduler_of_another_version_is_told_now_and_then(
    running, joined, deployment, caplog
):
    """Twice a second it was told what to serve, with the weights, and nobody was told why."""
    dask = running()
    pool, clock = joined(dask, deployment), FakeClock(100.0)
    pool._now = clock
    times, deploy_it = [], dask.scheduler.handlers["kdlab_deploy"]

    async def deployed(deployment):
        times.append(clock())
        return await deploy_it(deployment)

    async def status():
        return {"version": 99}

    dask.scheduler.handlers |= {"kdlab_deploy": deployed, "kdlab_status": status}
    with caplog.at_level("WARNING", "kdlab"):
        for _ in range(20):
            pool.update()
            clock.advance(0.5)
    assert times == [100.0, 101.0, 103.0, 107.0]
    (message,) = (r.getMessage() for r in caplog.records if r.name == "kdlab")
    assert dask.address in message
    assert "This is no PoolStatus" in message


def test_a_pool_that_serves_others_is_not_taken_from_them(running, joined, deployment):
    dask = running()
    joined(dask, deployment)
    ask(dask.address, "kdlab_demand", student="s", t_s=10.0, at_most=None)
    changed = replace(deployment, by_reference=False, num_classes=11)
    how = {"tls": None, "with_weights": False}
    with pytest.raises(TeacherRefused, match="still serves s with another model"):
        deploy(dask.address, changed, **how)
    ask(dask.address, "kdlab_student_gone", student="s")
    deploy(dask.address, changed, **how)
    assert status_of(dask.address, None).deployed == changed.fingerprint


def test_a_coordinator_that_takes_no_more_weights_is_said(running, deployment, monkeypatch):
    dask = running()
    install(dask.address)
    (member,) = deployment.members

    async def full(sha256, offset, chunk):
        return 0

    dask.scheduler.handlers["kdlab_weights_put"] = full
    with pytest.raises(ClusterError, match="is its disk full"):
        send_weights(dask.address, Path(member.weights), member.sha256, None)


def test_nobody_becomes_ready_in_time_and_what_would_help(running, joined, deployment):
    dask = running()
    pool = joined(dask, deployment, wait_s=0.05)
    with pytest.raises(ClusterError, match=r"0 are loading.*\n.*kdlab teacher"):
        pool.wait()
    with pytest.raises(RunStopped):
        pool.wait(lambda: True)


def test_a_scheduler_without_kdlab_is_told_what_to_do(running, monkeypatch):
    dask = running()

    def missing(address, tls, plugin):
        assert isinstance(plugin, Coordinator)
        raise ImportError("No module named 'kdlab'")

    monkeypatch.setattr("kdlab.cluster.schedulers.register_plugin", missing)
    with pytest.raises(ClusterError, match=r"--preload kdlab\.cluster\.coordinator"):
        install(dask.address)


def test_an_open_address_is_refused_unless_it_is_wanted(monkeypatch):
    short = partial(check_address, wait_s=0.05)
    monkeypatch.setattr("kdlab.cluster.remote_pool.check_address", short)
    with pytest.raises(SpecError, match="anyone who can connect to a plain TCP address"):
        RemotePool(address="tcp://10.0.0.1:8786")
    with pytest.raises(SpecError, match="needs an address tls"):
        RemotePool(address="tls://10.0.0.1:8786")
    monkeypatch.setenv("KDLAB_ADDRESSES", "tls://other:1 tcp://127.0.0.1:9")
    with pytest.raises(SchedulerUnreachable):
        RemotePool(address="tcp://127.0.0.1:9", insecure=True).check()


def test_a_scheduler_that_ends_while_starting_is_stopped(deployment, tmp_path, monkeypatch):
    """Whatever goes wrong, no process is left."""
    starts = Starts()

    def answer(timeout_s):
        raise ClusterError(f"did not come up within {timeout_s:g} s")

    starts.then = lambda child: setattr(child, "answer", answer)
    monkeypatch.setattr("kdlab.cluster.schedulers.Child", starts)
    with pytest.raises(ClusterError, match="within 7 s"):
        start_scheduler(deployment, tmp_path / "run" / "pool", ttl_s=6.0, start_s=7.0)
    (child,) = starts.children
    assert child.stops == 1
    config = child.config
    assert config.store_url == str(tmp_path / "run" / "pool" / "leases.json")
    assert config.store_prefix == "kdlab:run"
    assert config.deployment["fingerprint"] == deployment.fingerprint
