"""Teachers on deployed machines: through SSH, a batch system, Kubernetes or Dask.

As many as the students need: none before a student searches, more while it starves, none again
when no student holds them. The scheduler is a process of the run, or comes with the deployer.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

from distributed.deploy import Cluster

from kdlab.cluster.coordination.coordinator import Coordinator
from kdlab.cluster.demand import DemandFollower
from kdlab.cluster.deployers.deployer import DaskMachines, Deployer
from kdlab.cluster.keeper import PoolKeeper
from kdlab.cluster.pool import TICK_S, ComputingPoolSpec, LocalTeacherCount, PoolParts
from kdlab.cluster.schedulers import install, status_of
from kdlab.cluster.teachers.teacher_host import host_teachers
from kdlab.cluster.transport.security import Files, Tls
from kdlab.config import Fault, Range, register
from kdlab.config.spec import POSITIVE
from kdlab.papers.edl_dist.beyond.pool_size import PoolSize


@register("cluster/deployed_pool")
@dataclass(frozen=True, kw_only=True)
class DeployedPool(ComputingPoolSpec):
    """Machines for teachers, requested while students search, and given back when idle.

    machines: deployer that starts them: cluster/deployers/local, ssh, job_queue or kubernetes.
    teachers: on each machine.
    least, most: number of machines, at any time.
    idle_s: a machine whose teachers no student holds for this time is given back.
    start_s: time for the scheduler to come up.
    tls: certificates that every machine has at the same paths; null makes them in the run's
        folder, for machines that see it.
    host: address at which the machines reach this one; null finds it.
    port: of the scheduler; 0 takes any free port.
    """

    machines: Deployer
    teachers: Annotated[int, Range(ge=1)] = 1
    least: Annotated[int, Range(ge=0)] = 0
    most: Annotated[int, Range(ge=1)] = 4
    idle_s: Annotated[float, POSITIVE] = 60.0
    start_s: Annotated[float, POSITIVE] = 600.0
    tls: Tls | None = None
    host: str | None = None
    port: Annotated[int, Range(ge=0, le=65535)] = 0

    def cross_faults(self) -> Iterator[Fault]:
        at_most = self.machines.at_most()
        if at_most is not None and self.most > at_most:
            yield Fault("most", f"is {self.most}, and there are {at_most} machines")
        if self.least > self.most:
            yield Fault("least", f"is {self.least}, more than most ({self.most})")
        if self.machines.brings_scheduler and self.tls is None:
            yield Fault("tls", "is missing: give the certificates of its scheduler")

    def check(self) -> None:
        self.machines.check()

    def parts(self, folder: Path) -> PoolParts:
        tls = (self.tls or Tls(temporary=True)).files(folder)
        host = self.host or self.machines.reached_at()
        options: dict[str, str | float | None]
        options = {"host": host, "port": self.port, "start_s": self.start_s}
        return PoolParts(
            tls=tls,
            scheduler=None if self.machines.brings_scheduler else options,
            coordinator=Coordinator(self.ttl_s),
            machines=lambda pool: self.machines.up(pool.address, tls, folder),
            size=PoolSize(self.least, self.most, self.idle_s),
            ready=min(1, self.least),  # else they start when a student searches
            start_s=self.start_s,
            hosted=(self.teachers, self.threads),
        )

    def local_teachers(self) -> LocalTeacherCount:
        if not self.machines.local:
            return LocalTeacherCount()
        first, most = (max(1, n) * self.teachers for n in (self.least, self.most))
        return LocalTeacherCount(first, most, self.threads)


@contextmanager
def follow_demand(
    cluster: Cluster,
    *,
    tls: Files | None = None,
    teachers: int = 1,
    threads: int = 1,
    least: int = 0,
    most: int = 4,
    idle_s: float = 60.0,
) -> Iterator[DemandFollower]:
    """Scale any Dask cluster with `scale` to the workers that its pool's students need.

    Its workers need the resource `kdlab_teacher`, as `LocalCluster(n_workers=0,
    resources={"kdlab_teacher": 1})` gives them. Experiments use it as
    `teacher_pool={type: cluster/remote_pool, address: ...}`, with `cluster.scheduler_address`.

    Args:
        cluster: a running cluster.
        tls: files ca, cert and key of a cluster with TLS.
        teachers: on each of its workers.
        threads: CPU threads of each teacher.
        least: least number of workers, at any time.
        most: most workers, at any time.
        idle_s: a worker whose teachers no student holds for this time is given back.

    Raises:
        SchedulerUnreachable: the scheduler does not answer.
        ClusterError: its scheduler cannot import kdlab.
    """
    machines = DaskMachines(cluster)
    install(machines.address, tls)
    host_teachers(machines.address, tls, teachers, threads)
    status = partial(status_of, machines.address, tls)
    follower = DemandFollower(machines, status, PoolSize(least, most, idle_s))
    keeper = PoolKeeper("pool", TICK_S, lambda: follower.update(time.monotonic()))
    keeper.start()
    try:
        yield follower
    finally:
        keeper.close()  # from now on their number stays fixed
