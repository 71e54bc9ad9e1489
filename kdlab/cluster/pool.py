"""Pools of teachers: a local or external scheduler, and machines that come, go and are replaced.

A `PoolSpec` describes the parts of a pool; a running one is always a `RunningPool`.
"""

import logging
import shutil
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import Annotated, ClassVar, NamedTuple, Protocol, Self, runtime_checkable
from urllib.parse import urlsplit

from kdlab.cluster.coordination.coordinator import Coordinator
from kdlab.cluster.coordination.coordinator_messages import PoolStatus
from kdlab.cluster.demand import DemandFollower
from kdlab.cluster.deployment import Deployment, EngineChoice
from kdlab.cluster.keeper import PoolKeeper
from kdlab.cluster.machines import Machines
from kdlab.cluster.schedulers import deploy, install, start_scheduler, status_of
from kdlab.cluster.teachers.teacher_host import host_teachers
from kdlab.cluster.transport import security
from kdlab.cluster.transport.security import Files, Tls
from kdlab.cluster.transport.wire import check_address
from kdlab.codec import MessageError
from kdlab.config import Range
from kdlab.config.spec import POSITIVE, Spec
from kdlab.errors import ClusterError, RunStopped, SchedulerUnreachable, join_command
from kdlab.papers.edl_dist.beyond.pool_size import PoolSize
from kdlab.supervision.backoff import Backoff
from kdlab.supervision.children import Child, StartChild

TICK_S = 0.5  # between updates of a pool by its keeper


@runtime_checkable
class Pool(Protocol):
    """A running pool. Satisfies `soft_labels.source.TeacherPool`."""

    address: str
    teacher: str
    tls: Files | None
    machines: Machines

    def wait(self, stop: Callable[[], bool] = ...) -> PoolStatus:
        """Wait until a teacher is ready, and return the status."""

    def close(self) -> None: ...


class LocalTeacherCount(NamedTuple):
    """Teachers of a pool on this machine, as far as its spec tells."""

    first: int = 0  # at the start
    most: int = 0  # 0 where none computes here
    threads: int = 1  # CPU threads of each
    on_gpu: bool | None = None  # None: if there is one
    rate: float | None = None  # samples/s of each, where the spec states it


@dataclass(frozen=True, kw_only=True)
class PoolParts:
    """Parts of a pool: certificates, scheduler, coordinator, machines."""

    tls: Files | None  # certificates for all connections
    address: str = ""  # of an existing scheduler
    # Options of a scheduler to start here; None: one exists, or comes with the machines.
    scheduler: Mapping[str, str | float | None] | None = None
    # Installed in a scheduler without one, which then gets the deployment and the weights.
    coordinator: Coordinator | None = None
    machines: Callable[["RunningPool"], Machines] = lambda pool: Machines()
    size: PoolSize | None = None  # how many machines by demand; None leaves that to others
    first: int = 0  # machines to start whatever the demand
    ready: int = 1  # teachers to wait for at the start, within `start_s`
    start_s: float = 600.0  # a machine may be busy; an ended process is noticed at once
    hosted: tuple[int, int] = (0, 1)  # teachers on each Dask worker, threads of each
    replaces: bool = True  # whether lost parts are restarted


@dataclass(frozen=True, kw_only=True)
class PoolSpec(Spec, ABC):
    """Settings of a pool.

    ttl_s: a teacher silent for longer is given up (EDL's value is 6 s).
    """

    external: ClassVar[bool] = False  # runs outside this run, which others may share

    ttl_s: Annotated[float, POSITIVE] = 6.0

    @abstractmethod
    def parts(self, folder: Path) -> PoolParts:
        """Parts of the pool; its own files go to `folder`."""

    def start(self, deployment: Deployment, folder: Path) -> "RunningPool":
        """Start the pool and publish the deployment; logs go to `folder`."""
        return RunningPool(self, deployment, folder).keep()

    def as_served(self, deployment: Deployment) -> Deployment:
        """Deployment for the teachers of this pool, which may compute it in another way."""
        return deployment

    def check(self) -> None:  # a pool may have nothing to check
        """Check the pool before a run starts.

        Raises:
            SchedulerUnreachable: an external pool does not answer.
        """

    def local_teachers(self) -> LocalTeacherCount:
        """Teachers that compete with a student for this machine."""
        return LocalTeacherCount()


@dataclass(frozen=True, kw_only=True)
class ComputingPoolSpec(PoolSpec):
    """Settings of teachers that compute, wherever they run.

    engine: `auto` has each teacher measure what computes its model fastest on its machine (batch
        norms folded, bf16, ONNX Runtime, OpenVINO) and agrees with it, before it serves; `eager`
        is plain PyTorch, whose soft labels are the same everywhere.
    share_answers: teachers cache their answers (up to 256 MB), for others that ask for the same
        views of the same samples: trials of a sweep, students of other seeds. Not where a lone
        student has the pool for itself.
    threads: CPU threads of each teacher.
    """

    engine: EngineChoice = "auto"
    share_answers: bool = True
    threads: Annotated[int, Range(ge=1)] = 1

    def as_served(self, deployment: Deployment) -> Deployment:
        return replace(
            deployment.computed_by(self.engine), share_answers=self.share_answers
        )


class RunningPool:
    """A running pool; lost parts are replaced, and its machines follow the demand.

    `start` and the parameters after it replace processes, coordinator and clock in tests.
    """

    def __init__(
        self,
        spec: PoolSpec,
        deployment: Deployment,
        folder: Path,
        *,
        start: StartChild = Child,
        start_scheduler: Callable[..., tuple[Child, str]] = start_scheduler,
        status: Callable[[str, Files | None], PoolStatus] = status_of,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.spec, self.deployment, self.folder = spec, deployment, folder
        self.teacher, self.start_child, self._now = deployment.teacher, start, now
        self._start_scheduler, self._status_of = start_scheduler, status
        self.parts = spec.parts(folder)
        self.tls, self.address = self.parts.tls, self.parts.address
        self.scheduler: Child | None = None
        self.machines = Machines()
        self._up = self._published = False  # machines; the deployment at the scheduler
        self._follower: DemandFollower | None = None
        self._note: Path | None = None
        # Missing parts are started at once; after a failure later each time.
        self._again, self._again_at = Backoff(1.0, longest_s=30.0), -inf
        self._keeper = PoolKeeper("pool", TICK_S, self.update)
        try:
            self._begin()
        except BaseException:
            self.close()
            raise

    def keep(self) -> Self:
        """Maintain the pool in a thread until it is closed."""
        self._keeper.start()
        return self

    def status(self) -> PoolStatus:
        return self._status_of(self.address, self.tls)

    def update(self) -> None:
        """Replace lost parts, and adapt the number of machines to the demand."""
        now = self._now()
        if not (self._gone() or not self._up or not self._serves()):
            self._again.succeeded()
            self._again_at = now
        elif self.parts.replaces and now >= self._again_at:
            wait_s = self._again.wait_s(now)
            try:
                self._begin()
            finally:  # it may have taken longer than the wait
                self._again_at = self._now() + wait_s
        if self._follower is not None:
            self._follower.update(self._now())

    def _gone(self) -> bool:
        """True where the scheduler that this pool starts is not running."""
        starts = self.parts.scheduler is not None
        return starts and (self.scheduler is None or not self.scheduler.alive())

    def _serves(self) -> bool:
        """True where the scheduler knows the deployment, which a new one does not."""
        if self.parts.coordinator is None or not self._published:
            return self._published
        try:
            return self.status().deployed == self.deployment.fingerprint
        # Dask raises it where there is no coordinator.
        except AttributeError:
            return False
        except MessageError as error:
            if not self._again.at:
                logging.getLogger("kdlab").warning("pool at %s: %s", self.address, error)
            return False

    def _begin(self) -> None:
        """Start the missing parts, scheduler and machines, and publish the deployment."""
        if self._gone():
            self._begin_scheduler()
        if not self._up:
            self._begin_machines()
        if self._note is None and self.tls is not None and not self.spec.external:
            self._note = security.save_credentials(self.address, self.tls)
        if self.parts.coordinator is not None:
            install(self.address, self.tls, self.parts.coordinator)
            deploy(self.address, self.deployment, tls=self.tls, with_weights=True)
        if self.parts.hosted[0]:
            host_teachers(self.address, self.tls, *self.parts.hosted)
        self._published = True

    def _begin_scheduler(self) -> None:
        """Start the scheduler, the first one or the successor of one that died."""
        if self.scheduler is not None:
            self.scheduler.stop()
            if not self.machines.outlive_scheduler:
                self._end_machines()
        options = {"port": 0, **(self.parts.scheduler or {})}
        if self.address:
            options["port"] = urlsplit(self.address).port
        self._published = False
        self.scheduler, self.address = self._start_scheduler(
            self.deployment, self.folder, ttl_s=self.spec.ttl_s, tls=self.tls, **options
        )

    def _begin_machines(self) -> None:
        parts = self.parts
        self.machines = parts.machines(self)
        self._up = True
        if not self.address:  # the scheduler comes with them, which takes time
            self.address = self.machines.address
            check_address(self.address, parts.start_s, self.tls)
        now = min(parts.first, self.machines.at_once)
        if now:
            self.machines.grow(now)
        if parts.size is not None:
            args = (self.machines, self.status, parts.size, parts.first - now)
            self._follower = DemandFollower(*args)

    def _end_machines(self) -> None:
        """Give all machines back; later ones start from none."""
        machines, self.machines = self.machines, Machines()
        self._up, self._follower = False, None
        machines.close(scheduler_gone=self._gone())

    def wait(self, stop: Callable[[], bool] = lambda: False) -> PoolStatus:
        """Wait until the first teachers are ready, and return the status.

        Raises:
            ClusterError: they were not ready in time.
            RunStopped: the user asked to stop.
        """
        if not self.parts.ready:
            return self.status()  # they start when a student searches
        deadline, loading = time.monotonic() + self.parts.start_s, 0
        while time.monotonic() < deadline:
            if stop():
                raise RunStopped("stopped by the user while teachers were starting")
            try:
                status = self.status()
                if len(status.ready) >= self.parts.ready:
                    return status
                loading = len(status.teachers)
            except SchedulerUnreachable as error:  # the keeper restarts it
                logging.getLogger("kdlab").warning("%s", error)
            self.machines.check_hope()
            time.sleep(0.1)  # between polls; the deadline above ends it
        raise ClusterError(
            f"No teacher became ready at {self.address} within {self.parts.start_s:g} s "
            f"({loading} are loading). Start one:\n    {join_command(self.address)}"
        )

    def close(self) -> None:
        """End all parts that this run started, also after a failed start."""
        self._keeper.close()
        with ExitStack() as last:  # callbacks run in reverse order
            tls: Tls | None = getattr(self.spec, "tls", None)
            if not self.spec.external and self.tls and (tls is None or tls.temporary):
                last.callback(security.delete_credentials, self.tls)
            last.callback(shutil.rmtree, self.folder / "scratch", ignore_errors=True)
            if self._note is not None:
                last.callback(self._note.unlink, missing_ok=True)
            if self.scheduler is not None:
                last.callback(self.scheduler.stop)
            last.callback(self._end_machines)
