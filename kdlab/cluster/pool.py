"""Pools of teachers: a scheduler, own or given, and machines that come, go and are replaced.

A spec says what its pool is made of (`PoolSpec`); what is up is always a `RunningPool`.
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

TICK_S = 0.5  # between two looks of who keeps a pool


@runtime_checkable
class Pool(Protocol):
    """A pool that is up. Satisfies `soft_labels.source.TeacherPool`."""

    address: str
    teacher: str
    tls: Files | None
    machines: Machines

    def wait(self, stop: Callable[[], bool] = ...) -> PoolStatus:
        """Until a teacher is ready; what there is then."""

    def close(self) -> None: ...


class LocalTeacherCount(NamedTuple):
    """Teachers of a pool that compute on this machine, as far as its spec tells."""

    first: int = 0  # when it begins
    most: int = 0  # 0 where none computes
    threads: int = 1  # of the CPU, for each
    on_gpu: bool | None = None  # None is where there is one
    rate: float | None = None  # samples/s of each where the spec says it


@dataclass(frozen=True, kw_only=True)
class PoolParts:
    """What a pool is made of."""

    tls: Files | None  # certificates that all its connections show
    address: str = ""  # of a scheduler that is there
    # Options of the one that is started here; None: there is one, or the machines bring it.
    scheduler: Mapping[str, str | float | None] | None = None
    # What it becomes if it is none yet: then it is told what to serve, and given the weights.
    coordinator: Coordinator | None = None
    machines: Callable[["RunningPool"], Machines] = lambda pool: Machines()
    size: PoolSize | None = None  # how many machines by demand; None leaves that to others
    first: int = 0  # machines that come whatever the demand is
    ready: int = 1  # teachers that serve before a run goes on, within `start_s`
    start_s: float = 600.0  # a machine may be busy; one that has ended is seen at once
    hosted: tuple[int, int] = (0, 1)  # teachers on each Dask worker, threads of each
    replaces: bool = True  # whether what dies is started again


@dataclass(frozen=True, kw_only=True)
class PoolSpec(Spec, ABC):
    """A pool, as a spec names it.

    ttl_s: a teacher silent for longer is given up (EDL's value is 6 s).
    """

    given: ClassVar[bool] = False  # by somebody else, whose it stays; others may share it

    ttl_s: Annotated[float, POSITIVE] = 6.0

    @abstractmethod
    def parts(self, folder: Path) -> PoolParts:
        """What it is made of; files for it alone go to `folder`."""

    def start(self, deployment: Deployment, folder: Path) -> "RunningPool":
        """Bring the pool up and publish what it serves; logs go to `folder`."""
        return RunningPool(self, deployment, folder).keep()

    def as_served(self, deployment: Deployment) -> Deployment:
        """What its teachers are told, who may compute it in a way of their own."""
        return deployment

    def check(self) -> None:  # a pool may have nothing to check
        """Find what is wrong before a run starts.

        Raises:
            SchedulerUnreachable: for a pool that should be up already.
        """

    def here(self) -> LocalTeacherCount:
        """Those that compete with a student for this machine."""
        return LocalTeacherCount()


@dataclass(frozen=True, kw_only=True)
class ComputingPoolSpec(PoolSpec):
    """Teachers that compute, wherever they run.

    engine: `auto` has each teacher measure what computes its model fastest on its machine (batch
        norms folded, bf16, ONNX Runtime, OpenVINO) and agrees with it, before it serves; `eager`
        is PyTorch as it is, whose soft labels are the same everywhere.
    share_answers: teachers keep what they answered (up to 256 MB), for others who ask for the same
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
    """A pool that is up; what of it dies comes back, and its machines follow the demand.

    `start` and what follows it are the processes, the coordinator's answer and the clock.
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
        self._up = self._told = False  # machines; their scheduler of what it serves
        self._follower: DemandFollower | None = None
        self._note: Path | None = None
        # What is missing is begun at once, and what that does not help later each time.
        self._again, self._again_at = Backoff(1.0, longest_s=30.0), -inf
        self._keeper = PoolKeeper("pool", TICK_S, self.look)
        try:
            self._begin()
        except BaseException:
            self.close()
            raise

    def keep(self) -> Self:
        """Look after it in a thread, until it is closed."""
        self._keeper.start()
        return self

    def status(self) -> PoolStatus:
        return self._status_of(self.address, self.tls)

    def look(self) -> None:
        """What was lost comes back; the number of machines follows the demand."""
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
            self._follower.look(self._now())

    def _gone(self) -> bool:
        """Whether it has no scheduler where it should have one of its own."""
        own = self.parts.scheduler is not None
        return own and (self.scheduler is None or not self.scheduler.alive())

    def _serves(self) -> bool:
        """Whether the scheduler knows what to serve; one that is new does not."""
        if self.parts.coordinator is None or not self._told:
            return self._told
        try:
            return self.status().deployed == self.deployment.fingerprint
        # Dask's answers where there is no coordinator.
        except AttributeError:
            return False
        except MessageError as error:
            if not self._again.at:
                logging.getLogger("kdlab").warning("pool at %s: %s", self.address, error)
            return False

    def _begin(self) -> None:
        """Start what is missing: scheduler and machines; say what is to be served."""
        if self._gone():
            self._begin_scheduler()
        if not self._up:
            self._begin_machines()
        if self._note is None and self.tls is not None and not self.spec.given:
            self._note = security.save_credentials(self.address, self.tls)
        if self.parts.coordinator is not None:
            install(self.address, self.tls, self.parts.coordinator)
            deploy(self.address, self.deployment, tls=self.tls, with_weights=True)
        if self.parts.hosted[0]:
            host_teachers(self.address, self.tls, *self.parts.hosted)
        self._told = True

    def _begin_scheduler(self) -> None:
        """A first one, or another in the place of one that died."""
        if self.scheduler is not None:
            self.scheduler.stop()
            if not self.machines.outlive_scheduler:
                self._end_machines()
        options = {"port": 0, **(self.parts.scheduler or {})}
        if self.address:
            options["port"] = urlsplit(self.address).port
        self._told = False
        self.scheduler, self.address = self._start_scheduler(
            self.deployment, self.folder, ttl_s=self.spec.ttl_s, tls=self.tls, **options
        )

    def _begin_machines(self) -> None:
        parts = self.parts
        self.machines = parts.machines(self)
        self._up = True
        if not self.address:  # they bring the scheduler, which takes its time
            self.address = self.machines.address
            check_address(self.address, parts.start_s, self.tls)
        now = min(parts.first, self.machines.at_once)
        if now:
            self.machines.grow(now)
        if parts.size is not None:
            args = (self.machines, self.status, parts.size, parts.first - now)
            self._follower = DemandFollower(*args)

    def _end_machines(self) -> None:
        """Give all back; where they are to come back, they begin anew."""
        machines, self.machines = self.machines, Machines()
        self._up, self._follower = False, None
        machines.close(scheduler_gone=self._gone())

    def wait(self, stop: Callable[[], bool] = lambda: False) -> PoolStatus:
        """Until as many teachers are ready as it begins with; what there is then.

        Raises:
            ClusterError: they were not in time.
            RunStopped: the user asked to stop.
        """
        if not self.parts.ready:
            return self.status()  # they come when a student searches
        deadline, loading = time.monotonic() + self.parts.start_s, 0
        while time.monotonic() < deadline:
            if stop():
                raise RunStopped("stopped by the user while teachers were starting")
            try:
                status = self.status()
                if len(status.ready) >= self.parts.ready:
                    return status
                loading = len(status.teachers)
            except SchedulerUnreachable as error:  # whoever keeps it starts it again
                logging.getLogger("kdlab").warning("%s", error)
            self.machines.hopeless()
            time.sleep(0.1)  # between looks; the deadline above ends it
        raise ClusterError(
            f"No teacher became ready at {self.address} within {self.parts.start_s:g} s "
            f"({loading} are loading). Start one:\n    {join_command(self.address)}"
        )

    def close(self) -> None:
        """Give back all that is the run's, as far as it has come."""
        self._keeper.close()
        with ExitStack() as last:  # the last one named here comes first
            tls: Tls | None = getattr(self.spec, "tls", None)
            if not self.spec.given and self.tls and (tls is None or tls.temporary):
                last.callback(security.delete_credentials, self.tls)
            last.callback(shutil.rmtree, self.folder / "scratch", ignore_errors=True)
            if self._note is not None:
                last.callback(self._note.unlink, missing_ok=True)
            if self.scheduler is not None:
                last.callback(self.scheduler.stop)
            last.callback(self._end_machines)
