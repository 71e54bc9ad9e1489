"""Teachers that join a remote scheduler: `kdlab teacher ADDRESS` on each machine.

Or beside ordinary Dask workers, however those were started (`dask worker`, dask-jobqueue,
Kubernetes, SSH): see teacher_host.py.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from kdlab.cluster.coordination.coordinator import Coordinator
from kdlab.cluster.coordination.lease_store import store_faults
from kdlab.cluster.deployment import Deployment
from kdlab.cluster.pool import ComputingPoolSpec, PoolParts, RunningPool
from kdlab.cluster.transport.known_schedulers import require_known
from kdlab.cluster.transport.security import Files, Tls, address_faults
from kdlab.cluster.transport.wire import check_address
from kdlab.config import Fault, Range, register
from kdlab.config.spec import POSITIVE


@register("cluster/remote_pool")
@dataclass(frozen=True, kw_only=True)
class RemotePool(ComputingPoolSpec):
    """A running Dask scheduler; teachers join it with `kdlab teacher`.

    address: of the scheduler, for example tls://10.0.0.1:8786.
    wait_s: how long the run waits for its first teacher.
    tls: certificates that every machine of the pool has; needed for a tls:// address.
    insecure: plain TCP, where the network keeps others out: anyone who can connect can run
        code as the owner of the scheduler.
    ttl_s, store, journal: of a coordinator that this run installs: silence after which a
        teacher is given up; redis://... or a file on the scheduler's machine that keeps
        the leases; a file there for its events. An existing coordinator keeps its own.
    workers: Dask workers with the resource `kdlab_teacher` become hosts: each starts this
        many teachers on its machine. 0 leaves that to `kdlab teacher`.
    """

    external = True

    address: str
    wait_s: Annotated[float, POSITIVE] = 120.0
    tls: Tls | None = None
    insecure: bool = False
    store: str | None = None
    journal: str | None = None
    workers: Annotated[int, Range(ge=0)] = 0

    def cross_faults(self) -> Iterator[Fault]:
        yield from address_faults(self.address, self.tls, insecure=self.insecure)
        yield from store_faults(self.store, local=False)

    def check(self) -> None:
        require_known("teacher_pool", self.address)
        check_address(self.address, tls=self.certificates())

    def start(self, deployment: Deployment, folder: Path) -> RunningPool:
        require_known("teacher_pool", self.address)
        return super().start(deployment, folder)

    def certificates(self) -> Files | None:
        return None if self.tls is None else self.tls.files(Path())

    def parts(self, folder: Path) -> PoolParts:
        coordinator = Coordinator(self.ttl_s, store_url=self.store, journal=self.journal)
        return PoolParts(
            tls=self.certificates(),
            address=self.address,
            coordinator=coordinator,
            start_s=self.wait_s,
            hosted=(self.workers, self.threads),
        )
