"""Clusters of Dask as machines for teachers, and what single processes can be made to lack."""

import asyncio
import os
import resource
from types import SimpleNamespace
from typing import ClassVar

import pytest
from distributed import SpecCluster
from distributed.core import Status
from distributed.deploy.spec import ProcessInterface

from kdlab.cluster.chaos import DESCRIPTORS, FILE_SIZE, Limits
from kdlab.cluster.deployers.deployer import (
    WORKER_OPTIONS,
    DaskMachines,
    Deployer,
    StandingScheduler,
)
from kdlab.cluster.deployers.ssh import SshMachines, _HostsCluster
from kdlab.cluster.transport.roles import MEANT_TO_END, RANK, TEACHER, TeacherWorker
from kdlab.cluster.transport.security import NoHttp
from kdlab.errors import BadInput, ClusterError

SCHEDULER = "tcp://there:1"


class Machine(ProcessInterface):
    """A worker of a `SpecCluster` that comes up, or does not."""

    broken: ClassVar = set()

    def __init__(self, scheduler, name=None, **options):
        super().__init__(scheduler=scheduler, name=name)
        self.name, self.options = name, options

    async def start(self):
        if self.name in self.broken:
            raise OSError(f"{self.name} has no power")
        self.status = Status.running


class Scheduler:
    """A scheduler that has an address and no workers."""

    address = SCHEDULER

    def __init__(self):
        self.retired = []

    async def retire_workers(self, workers):
        self.retired += workers

    async def close_rpc(self):
        pass


class Cluster(SpecCluster):
    """Dask's own cluster without the connection to its scheduler."""

    async def _start(self):
        self._lock = asyncio.Lock()
        self.scheduler, self.scheduler_comm = StandingScheduler(SCHEDULER), Scheduler()
        self.scheduler.status = self.status = Status.running


@pytest.fixture
def machines():
    Machine.broken = set()
    machines = DaskMachines(
        Cluster(worker={"cls": Machine, "options": {}}, shutdown_scheduler=False)
    )
    yield machines
    machines.close()


def test_it_asks_for_more_and_gives_back_those_that_are_named(machines):
    assert machines.address == SCHEDULER
    assert machines.wanted() == 0
    machines.grow(3)
    assert machines.wanted() == 3
    first, second, third = map(str, machines.cluster.worker_spec)
    machines.withdraw([second, "another"])
    assert [str(name) for name in machines.cluster.worker_spec] == [first, third]
    assert machines.wanted() == 2


def test_one_more_can_be_asked_for_and_teachers_are_known_by_their_machine(machines):
    assert machines.add() is None  # a machine has no pid
    assert machines.wanted() == 1
    (name,) = machines.cluster.worker_spec
    assert machines.has(f"{name}.77.0", pid=78)
    assert not machines.has(f"{name}0.77.0", pid=78)


def test_one_that_was_lost_is_not_counted(machines):
    machines.grow(2)
    del machines.cluster.workers[next(iter(machines.cluster.workers))]
    assert machines.wanted() == 1


def test_one_that_does_not_come_up_is_given_back_and_said_with_its_reason(machines):
    Machine.broken = {1}
    with pytest.raises(
        ClusterError, match=r"1 of 3 machines .* could not be started: 1: 1 has no power"
    ):
        machines.grow(3)
    assert machines.wanted() == 2


def test_who_does_not_give_back_is_said(machines, monkeypatch):
    machines.grow(1)

    def broken(names):
        raise OSError("the queue does not answer")

    monkeypatch.setattr(machines.cluster, "scale_down", broken)
    with pytest.raises(ClusterError, match=r"1 machines .* given back: the queue does not"):
        machines.withdraw([str(name) for name in machines.cluster.worker_spec])


def test_closing_never_raises(machines, caplog, monkeypatch):
    def broken(**_):
        raise OSError("no route")

    with monkeypatch.context() as patch:
        patch.setattr(machines.cluster, "close", broken)
        machines.close()
    assert "machines did not close: no route" in caplog.text


def test_of_a_scheduler_that_is_gone_nothing_is_asked(machines):
    worker = Machine(SCHEDULER)  # it never came up
    machines.cluster._created.add(worker)
    machines.close(scheduler_gone=True)
    assert machines.cluster.scheduler.status == Status.closed
    assert worker.status == Status.closed


class Scaled:
    """Any cluster with `scale`, which does not say how many it has."""

    scheduler_address = SCHEDULER

    def __init__(self):
        self.asked = []

    def scale(self, count):
        self.asked.append(count)


def test_other_clusters_are_scaled_to_a_number():
    cluster = Scaled()
    machines = DaskMachines(cluster)
    machines.grow(2)
    machines.grow(1)
    machines.withdraw(["a", "b"])
    machines.withdraw(["c", "d"])
    assert cluster.asked == [2, 3, 1, 0]
    assert machines.wanted() == 0


def test_hosts_take_turns_so_that_one_that_is_down_stops_no_other():
    cluster = SimpleNamespace(
        hosts=["127.0.0.1", "b"], worker_spec={}, _i=0, options={"kwargs": {"k": 1}}
    )

    def new():
        (name, spec), *_ = _HostsCluster.new_worker_spec(cluster).items()
        cluster.worker_spec[name] = spec
        return name, spec["options"]

    (first, local), (second, remote) = new(), new()
    assert (first, second) == ("127.0.0.1-1", "b-2")
    assert (local["address"], remote["address"]) == ("127.0.0.1", "b")
    # Dask would take the address that others see.
    assert local["kwargs"] == {"k": 1, "name": first, "host": "127.0.0.1"}
    assert remote["kwargs"] == {"k": 1, "name": second}
    del cluster.worker_spec[first], cluster.worker_spec[second]
    assert new()[0] == "127.0.0.1-3"
    new()
    with pytest.raises(ClusterError, match="All 2 machines of the pool are in use"):
        new()


def test_a_machine_is_reached_on_loopback_only_where_all_are():
    assert SshMachines(hosts=("127.0.0.1", "localhost")).reached_at() == "127.0.0.1"
    assert SshMachines(hosts=("127.0.0.1", "far")).reached_at() != "127.0.0.1"


class Row(Deployer):
    """Starts nothing."""

    def cluster(self, scheduler, files, folder):
        raise AssertionError


def test_a_package_that_is_missing_is_named_with_what_brings_it():
    Row.needs = ("json", "nothing")
    Row().check()
    Row.needs = ("no_such_package_anywhere", "ssh")
    with pytest.raises(BadInput, match=r"pip install 'kdlab\[ssh\]'"):
        Row().check()


def test_hosts_have_a_role_no_pages_and_no_tasks():
    assert WORKER_OPTIONS["resources"] == {TEACHER: 1}
    assert WORKER_OPTIONS["dashboard"] is False
    assert issubclass(TeacherWorker, NoHttp)
    assert TEACHER != RANK
    assert MEANT_TO_END == (0, 2)  # what `kdlab teacher` ends with, for supervisors


# Limits of single processes


@pytest.fixture
def mine():
    """Reads limits of this process, and restores them in the end."""
    before = {kind: resource.getrlimit(kind) for kind in (FILE_SIZE, DESCRIPTORS)}
    yield lambda kind: resource.getrlimit(kind)[0]
    for kind, limits in before.items():
        resource.setrlimit(kind, limits)


def test_a_limit_is_lowered_and_lifted_to_what_it_was(mine, tmp_path):
    limits, before = Limits(), mine(DESCRIPTORS)
    process = limits.lower(os.getpid(), DESCRIPTORS, None)
    assert process.pid == os.getpid()
    assert mine(DESCRIPTORS) <= process.num_fds() + 1  # what it has, and no more
    again = limits.lower(os.getpid(), DESCRIPTORS, 2000)  # while it is low
    assert mine(DESCRIPTORS) == 2000
    limits.lift(again, DESCRIPTORS)
    assert mine(DESCRIPTORS) == before


def test_a_process_that_is_gone_has_no_limit(mine):
    assert Limits().lower(2**22 + 1, FILE_SIZE, 10) is None
