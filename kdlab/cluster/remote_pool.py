"""Teachers that join a scheduler somewhere: `kdlab teacher ADDRESS` on each machine.

Or on the machines of ordinary Dask workers, however those were started (`dask worker`,
dask-jobqueue, Kubernetes, SSH): see teacher_host.py.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from kdlab.cluster.coordination.coordinator import Coordinator
from kdlab.cluster.coordination.coordinator_messages import PoolStatus
from kdlab.cluster.coordination.lease_store import store_faults
from kdlab.cluster.deployment import Deployment
from kdlab.cluster.keeper import PoolKeeper
from kdlab.cluster.pool import ComputingPoolSpec, deploy, status_of, wait_for_teacher
from kdlab.cluster.teachers.teacher_host import host_teachers
from kdlab.cluster.wires.known_schedulers import require_known
from kdlab.cluster.wires.security import Files, Tls, address_faults
from kdlab.cluster.wires.wire import ask, check_address, register_plugin
from kdlab.config import Fault, Range, register
from kdlab.config.spec import POSITIVE
from kdlab.errors import ClusterError

_TICK_S = 1.0


@register("cluster/remote_pool")
@dataclass(frozen=True, kw_only=True)
class RemotePool(ComputingPoolSpec):
    """A Dask scheduler that runs already; teachers join it with `kdlab teacher`.

    address: of the scheduler, for example tls://10.0.0.1:8786.
    wait_s: how long the run waits for its first teacher.
    tls: certificates that every machine of the pool has; needed for a tls:// address.
    insecure: plain TCP, where the network keeps others out: whoever can connect can run
        code as the owner of the scheduler.
    ttl_s, store, journal: of a coordinator that this run installs: silence after which a
        teacher is given up; redis://... or a file on the scheduler's machine that keeps
        the leases; a file there for its events. A coordinator that is there keeps its own.
    workers: Dask workers with the resource `kdlab_teacher` become hosts: each starts so
        many teachers on its machine. 0 leaves that to `kdlab teacher`.
    """

    address: str
    wait_s: Annotated[float, POSITIVE] = 120.0
    tls: Tls | None = None
    insecure: bool = False
    store: str | None = None
    journal: str | None = None
    workers: Annotated[int, Range(ge=0)] = 0

    def cross_faults(self) -> Iterator[Fault]:
        yield from address_faults(self.address, self.tls, insecure=self.insecure)
        yield from store_faults(self.store, here=False)

    def certificates(self) -> Files | None:
        return None if self.tls is None else self.tls.files(Path())

    def check(self) -> None:
        require_known("teacher_pool", self.address)
        check_address(self.address, tls=self.certificates())

    def start(self, deployment: Deployment, folder: Path) -> "JoinedPool":
        require_known("teacher_pool", self.address)
        return JoinedPool(self, deployment)


class JoinedPool:
    """A pool somebody else keeps; what it serves is said again when it was started anew."""

    def __init__(self, spec: RemotePool, deployment: Deployment) -> None:
        self.spec, self.address, self.deployment = spec, spec.address, deployment
        self.teacher, self.tls = deployment.teacher, spec.certificates()
        self.deploy()
        self._keeper = PoolKeeper(f"pool at {self.address}", _TICK_S, self.look)
        self._keeper.start()

    def deploy(self) -> None:
        """Tell the pool what to serve, and its workers to host teachers."""
        spec = self.spec
        own = Coordinator(spec.ttl_s, store_url=spec.store, journal=spec.journal)
        install(self.address, self.tls, own)
        deploy(self.address, self.deployment, tls=self.tls, with_weights=True)
        if spec.workers:
            host_teachers(self.address, self.tls, spec.workers, spec.threads)

    def look(self) -> None:
        if not self._serves():
            self.deploy()

    def _serves(self) -> bool:
        if not has_coordinator(self.address, self.tls):
            return False
        deployed = status_of(self.address, self.tls).deployed
        return deployed == self.deployment.fingerprint

    def wait(self, stop: Callable[[], bool] = lambda: False) -> PoolStatus:
        return wait_for_teacher(
            self.address, self.spec.wait_s, lambda: None, stop, tls=self.tls
        )

    def close(self) -> None:
        """The pool was there before the run and stays."""
        self._keeper.close()


def install(
    address: str, tls: Files | None = None, coordinator: Coordinator | None = None
) -> None:
    """Make a plain Dask scheduler a coordinator, if it is none yet.

    Args:
        address: of the scheduler.
        tls: certificates of the pool.
        coordinator: that it becomes; None is one that keeps nothing beyond its process.

    Raises:
        SchedulerUnreachable: nobody answers.
        ClusterError: the scheduler cannot import kdlab.
    """
    check_address(address, tls=tls)
    if has_coordinator(address, tls):
        return
    try:
        register_plugin(address, tls, coordinator or Coordinator())
    except (OSError, ImportError, TimeoutError) as error:
        raise ClusterError(
            f"The scheduler at {address} cannot become a coordinator: {error}. kdlab must "
            "be installed there too, or start it with\n"
            "    dask scheduler --preload kdlab.cluster.coordinator"
        ) from error


def has_coordinator(address: str, tls: Files | None = None) -> bool:
    try:
        return isinstance(ask(address, "kdlab_status", tls=tls), dict)
    except AttributeError:  # Dask's answer to an operation it does not know
        return False
