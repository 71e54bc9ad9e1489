"""Any pool: what of it dies comes back, in the order in which it is needed."""

from dataclasses import dataclass

import pytest
from pool_status import status
from scripted_children import Starts

from kdlab.cluster.machines import Machines
from kdlab.cluster.pool import PoolParts, PoolSpec, RunningPool
from kdlab.errors import ClusterError
from kdlab.papers.edl_dist.beyond.pool_size import PoolSize
from kdlab.testing.scripted import FakeClock

ADDRESS = "tls://127.0.0.1:4321"


class Hosts(Machines):
    """Machines that go with their scheduler, as Dask's do."""

    outlive_scheduler = False

    def __init__(self, address):
        self.scheduler_address, self.looks, self.closed = address, 0, []

    def wanted(self):
        self.looks += 1
        return 0

    def close(self, *, scheduler_gone=False):
        self.closed.append(scheduler_gone)


@dataclass(frozen=True, kw_only=True)
class Hosted(PoolSpec):
    hosts: list
    broken: list

    def parts(self, folder):
        return PoolParts(tls=None, scheduler={}, machines=self.up, size=PoolSize(0, 1))

    def up(self, pool):
        if self.broken:
            raise self.broken.pop()
        self.hosts.append(Hosts(pool.address))
        return self.hosts[-1]


@pytest.fixture
def case(tmp_path, deployment):
    """(pool, its schedulers, its machines, what fails when machines are next made)."""
    schedulers, hosts, broken, ports = Starts(), [], [], []

    def start(deployment, folder, *, port, **how):
        ports.append(port)
        return schedulers("scheduler", None, folder), ADDRESS

    spec = Hosted(hosts=hosts, broken=broken)
    pool = RunningPool(
        spec, deployment, tmp_path, start_scheduler=start, status=lambda *_: status()
    )
    yield pool, schedulers.children, hosts, broken
    pool.close()
    assert ports == [0] + [4321] * (len(ports) - 1)  # where teachers look for it


def test_machines_that_go_with_their_scheduler_come_back_after_it(case):
    pool, schedulers, hosts, _ = case
    assert [h.scheduler_address for h in hosts] == [ADDRESS]  # the scheduler came first
    pool.update()
    assert (len(schedulers), len(hosts), hosts[0].looks) == (1, 1, 1)
    schedulers[0].die()
    pool.update()
    assert (hosts[0].closed, hosts[0].looks) == ([True], 1)  # nothing was asked of it
    assert (len(schedulers), len(hosts), pool.machines) == (2, 2, hosts[1])


def test_machines_that_do_not_come_back_are_tried_again_and_their_scheduler_stays(case):
    pool, schedulers, hosts, broken = case
    pool._now = clock = FakeClock(100.0)
    schedulers[0].die()
    broken.append(ClusterError("the queue is closed"))
    with pytest.raises(ClusterError, match="queue is closed"):
        pool.update()  # its keeper says so
    assert (len(schedulers), len(hosts)) == (2, 1)
    pool.update()
    assert len(hosts) == 1  # not twice a second
    clock.advance(1.0)
    pool.update()
    assert (len(schedulers), len(hosts), pool.machines) == (2, 2, hosts[1])


def test_all_is_given_back_machines_first(case):
    pool, (scheduler,), (hosts,), _ = case
    pool.close()
    assert hosts.closed == [False]  # it could still be asked
    assert scheduler.stops == 1


def test_teachers_of_others_cannot_be_started_or_ended_from_here():
    machines = Machines()
    with pytest.raises(ClusterError, match="not started from here, see kdlab teacher"):
        machines.add()
    machines.withdraw(["a"])
    machines.check_hope()
    machines.close()
    assert not machines.has("a", pid=1)
