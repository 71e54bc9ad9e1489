"""Teachers on machines that somebody else starts: SSH, a batch system, Kubernetes, Dask.

As many as the students need: none before a student searches, more while it starves, none again
when nobody holds them. The scheduler is a process of the run, unless the deployer brings its own.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

from distributed.deploy import Cluster

from kdlab.cluster.coordination.coordinator_messages import PoolStatus
from kdlab.cluster.demand import DemandFollower
from kdlab.cluster.deployers.deployer import DaskMachines, Deployer, Machines
from kdlab.cluster.deployment import Deployment
from kdlab.cluster.keeper import PoolKeeper
from kdlab.cluster.pool import ComputingPoolSpec, start_scheduler, status_of
from kdlab.cluster.remote_pool import JoinedPool, RemotePool, install
from kdlab.cluster.teachers.teacher_host import host_teachers
from kdlab.cluster.wires.security import Files, Tls, forget, remember
from kdlab.cluster.wires.wire import check_address
from kdlab.config import Fault, Range, register
from kdlab.config.spec import POSITIVE
from kdlab.papers.edl_dist.beyond.pool_size import PoolSize
from kdlab.supervision.children import Child

_TICK_S = 1.0


@register("cluster/deployed_pool")
@dataclass(frozen=True, kw_only=True)
class DeployedPool(ComputingPoolSpec):
    """Machines for teachers that are asked for while students search, and given back when idle.

    machines: who starts them: cluster/deployers/local, ssh, job_queue or kubernetes.
    teachers: on each machine.
    least, most: machines, at any time.
    idle_s: a machine whose teachers nobody holds for so long is given back.
    start_s: so long the scheduler may take to come up.
    tls: certificates that every machine has at the same paths; null makes them in the run's
        folder, for machines that see it.
    host: where the machines reach this one; null finds out.
    port: of the scheduler; 0 is any that is free.
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
            yield Fault("tls", "is missing: the certificates that its scheduler has too")

    def check(self) -> None:
        self.machines.check()

    def start(self, deployment: Deployment, folder: Path) -> "RunningDeployedPool":
        return RunningDeployedPool(self, deployment, folder)


class RunningDeployedPool:
    """A scheduler, and machines that come and go; a scheduler that dies comes back with them."""

    def __init__(self, spec: DeployedPool, deployment: Deployment, folder: Path) -> None:
        self.spec, self.deployment, self.folder = spec, deployment, folder
        self.teacher = deployment.teacher
        self.files = (spec.tls or Tls(temporary=True)).files(folder)
        self.tls: Files | None = self.files
        self.scheduler: Child | None = None
        self.machines: Machines | None = None
        self.follower: DemandFollower | None = None
        self.joined: JoinedPool | None = None
        self._keeper = PoolKeeper("pool", _TICK_S, self.look)
        try:
            address = (
                "" if spec.machines.brings_scheduler else self._start_scheduler(spec.port)
            )
            self.machines = spec.machines.up(address, self.files, folder)
            self.address = address or self.machines.address
            self.note = remember(self.address, self.files)
            # One that the machines bring takes its time.
            check_address(self.address, spec.start_s, self.tls)
            self.joined = JoinedPool(self._as_remote(), deployment)
            self.follower = self._follower()
            self._keeper.start()
        except BaseException:
            self.close()
            raise

    def _start_scheduler(self, port: int) -> str:
        spec = self.spec
        self.scheduler, address = start_scheduler(
            self.deployment,
            self.folder,
            ttl_s=spec.ttl_s,
            tls=self.tls,
            host=spec.host or spec.machines.reached_at(),
            port=port,
            start_s=spec.start_s,
        )
        return address

    def _as_remote(self) -> RemotePool:
        spec = self.spec
        return RemotePool(
            address=self.address,
            wait_s=spec.start_s,
            tls=Tls(ca=self.files["ca"], cert=self.files["cert"], key=self.files["key"]),
            ttl_s=spec.ttl_s,
            workers=spec.teachers,
            threads=spec.threads,
        )

    def _follower(self) -> DemandFollower:
        assert self.machines is not None
        size = PoolSize(self.spec.least, self.spec.most, self.spec.idle_s)
        return DemandFollower(self.machines, self.tls, size).begin()

    def wait(self, stop: Callable[[], bool] = lambda: False) -> PoolStatus:
        """They come when a student searches."""
        if self.spec.least and self.joined is not None:
            return self.joined.wait(stop)
        return status_of(self.address, self.tls)

    def look(self) -> None:
        if self.scheduler is not None and not (self.scheduler.alive() and self.follower):
            self._begin_again()

    def _begin_again(self) -> None:
        """The scheduler has died, or came back and its machines have not."""
        self._end_machines()
        if self.scheduler is None or not self.scheduler.alive():
            self._start_scheduler(urlsplit(self.address).port or 0)
        self.machines = self.spec.machines.up(self.address, self.files, self.folder)
        assert self.joined is not None
        self.joined.deploy()  # this one knows of no workers that host teachers
        self.follower = self._follower()

    def _end_machines(self) -> None:
        gone = self.scheduler is not None and not self.scheduler.alive()
        if self.follower is not None:
            self.follower.close()
        if self.machines is not None:
            self.machines.close(scheduler_gone=gone)
        self.follower = self.machines = None

    def close(self) -> None:
        """Give back all that is there, as far as it has come."""
        self._keeper.close()
        with ExitStack() as last:  # the last one named here comes first
            if self.spec.tls is None or self.spec.tls.temporary:
                last.callback(forget, self.files)
            if hasattr(self, "note"):
                last.callback(self.note.unlink, missing_ok=True)
            if self.scheduler is not None:
                last.callback(self.scheduler.stop)
            last.callback(self._end_machines)
            if self.joined is not None:
                last.callback(self.joined.close)


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
    """Any cluster of Dask with `scale` has as many workers as the students of its pool need.

    Its workers need the resource `kdlab_teacher`, as `LocalCluster(n_workers=0,
    resources={"kdlab_teacher": 1})` gives them. Experiments use it as
    `teacher_pool={type: cluster/remote_pool, address: ...}`, with `cluster.scheduler_address`.

    Args:
        cluster: that is up.
        tls: files ca, cert and key of a cluster that speaks TLS.
        teachers: on each of its workers.
        threads: CPU threads of each teacher.
        least: workers, at any time.
        most: workers, at any time.
        idle_s: a worker whose teachers nobody holds for so long is given back.

    Raises:
        SchedulerUnreachable: nobody answers at its address.
        ClusterError: its scheduler cannot import kdlab.
    """
    machines = DaskMachines(cluster)
    install(machines.address, tls)
    host_teachers(machines.address, tls, teachers, threads)
    follower = DemandFollower(machines, tls, PoolSize(least, most, idle_s)).begin()
    try:
        yield follower
    finally:
        follower.close()
