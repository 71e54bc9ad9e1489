"""Teachers on this machine: a scheduler and teachers, each a process of its own."""

import shutil
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

from kdlab.cluster.child_configs import TeacherConfig
from kdlab.cluster.coordination.coordinator_messages import PoolStatus
from kdlab.cluster.coordination.lease_store import store_faults
from kdlab.cluster.demand import DemandFollower
from kdlab.cluster.deployment import Deployment
from kdlab.cluster.keeper import PoolKeeper
from kdlab.cluster.limits import free_memory, usable_cores
from kdlab.cluster.pool import (
    ComputingPoolSpec,
    start_scheduler,
    status_of,
    wait_for_teacher,
)
from kdlab.cluster.wires.roles import MEANT_TO_END
from kdlab.cluster.wires.security import Files, Tls, forget, own_files, remember
from kdlab.config import Fault, Range, register
from kdlab.config.spec import POSITIVE
from kdlab.errors import BadInput, ClusterError
from kdlab.papers.edl_dist.beyond.pool_size import PoolSize
from kdlab.supervision.children import Child, StartChild

_TEACHER_BYTES = 350e6  # of a teacher's process, torch included, at least
_PER_CORE = 16  # teachers: more would do nothing but take turns
_AT_ONCE = 4  # teachers that start at the same time
_TICK_S = 0.5
_LONGEST_BACK_S = 60.0  # until a teacher that dies again and again is started once more


@register("cluster/local_pool")
@dataclass(frozen=True, kw_only=True)
class LocalPool(ComputingPoolSpec):
    """Teachers as processes on this machine, started with the run and ended with it.

    teachers: how many at the start.
    most: the pool may grow to so many while a student searches, and shrinks to `least`
        when teachers are idle; null keeps the number as it is.
    idle_s: a teacher that nobody holds for so long is withdrawn.
    replace_lost: a teacher that dies is started again, after 1, 2, 4 ... seconds, unless it
        was told to leave or refused; and so is a scheduler that dies.
    start_s: so long the scheduler and the first teacher may take to come up.
    tls: certificates of your own for all traffic of the pool; null makes them for each run,
        and a token for the soft labels. Nobody else on this machine can connect.
    store: redis://... keeps the leases in a Redis; null is a file in the run's folder. A
        password is named, not written: redis://:<env:KDLAB_NAME>@host or <secret:NAME>.
    chaos: teachers obey `chaos:` orders to cut their network; set by it.
    """

    teachers: Annotated[int, Range(ge=0)] = 2
    least: Annotated[int, Range(ge=0)] = 1
    most: Annotated[int, Range(ge=1)] | None = None
    idle_s: Annotated[float, POSITIVE] = 10.0
    replace_lost: bool = True
    device: Literal["auto", "cpu", "cuda"] = "auto"
    start_s: Annotated[float, POSITIVE] = 600.0
    tls: Tls | None = None
    store: str | None = None
    chaos: bool = False

    def cross_faults(self) -> Iterator[Fault]:
        yield from store_faults(self.store, here=True)
        if self.most is None and self.teachers < 1:
            yield Fault("teachers", "is 0; a pool that does not grow needs at least one")
        if self.most is not None and not self.least <= self.teachers <= self.most:
            yield Fault(
                "teachers",
                f"is {self.teachers}, must lie between least ({self.least}) and most "
                f"({self.most})",
            )

    def check(self) -> None:
        """Whether this machine has room for its teachers.

        Raises:
            BadInput: it has not.
        """
        wanted = max(self.teachers, self.most or 0)
        by_cores, free = _PER_CORE * usable_cores(), free_memory()
        by_memory = int(0.9 * free / _TEACHER_BYTES)
        if wanted > min(by_cores, by_memory):
            raise BadInput(
                f"teacher_pool: {wanted:,} teachers are more than this machine can hold: at most "
                f"{by_cores} share {usable_cores()} cores ({_PER_CORE} each), and {by_memory} fit "
                f"into {free / 1e9:.1f} GB of free memory. Nothing was started. Ask for fewer; to "
                "try out larger pools use teacher_pools/emulated or kdlab simulate."
            )

    def start(self, deployment: Deployment, folder: Path) -> "RunningLocalPool":
        pool = RunningLocalPool(self, deployment, folder)
        pool.keep()
        return pool


class RunningLocalPool:
    def __init__(
        self,
        spec: LocalPool,
        deployment: Deployment,
        folder: Path,
        *,
        start: StartChild = Child,
        start_scheduler: Callable[..., tuple[Child, str]] = start_scheduler,
        status: Callable[[str, Files | None], PoolStatus] = status_of,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.spec, self.folder, self.teacher = spec, folder, deployment.teacher
        self.deployment, self._now = deployment, now
        self._start_child, self._status_of = start, status
        self.files = own_files(spec.tls, folder)
        self.tls: Files | None = self.files
        how = {"ttl_s": spec.ttl_s, "store": spec.store, "start_s": spec.start_s}
        self._start_scheduler = partial(
            start_scheduler, deployment, folder, tls=self.tls, **how
        )
        self.scheduler, self.address = self._start_scheduler(port=0)
        self.note = remember(self.address, self.files)
        self.teachers: list[Child] = []
        self._keeper = PoolKeeper("pool", _TICK_S, self.look)
        self._replaced: set[int] = set()  # pids of the dead that were seen to
        self._back_at: list[float] = []  # when teachers that died come back
        self._deaths = 0  # in a row, without one that became ready meanwhile
        self._follower: DemandFollower | None = None
        if spec.most is not None:
            size = PoolSize(spec.least, spec.most, spec.idle_s)
            self._follower = DemandFollower(self, self.tls, size, status)
        # Starting takes much memory and all cores: the others come as these are ready.
        self._still_to_start = max(0, spec.teachers - _AT_ONCE)
        try:
            for _ in range(spec.teachers - self._still_to_start):
                self.add_teacher()
        except BaseException:
            self.close()
            raise

    def keep(self) -> None:
        """Look after it in a thread, where there is something to look after."""
        if self.spec.most is not None or self.spec.replace_lost or self._still_to_start:
            self._keeper.start()

    def add_teacher(self) -> Child:
        name = f"teacher-{len(self.teachers)}"
        config = TeacherConfig(
            scheduler=self.address,
            name=name,
            host="127.0.0.1",
            threads=self.spec.threads,
            scratch=str(self.folder / "scratch"),
            device=self.spec.device,
            number=len(self.teachers),
            tls=self.tls,
            chaos=self.spec.chaos,
        )
        child = self._start_child(
            "kdlab.cluster.teachers.teacher_server",
            config,
            self.folder / f"{name}.log",
            environment={"OMP_NUM_THREADS": str(self.spec.threads)},
        )
        self.teachers.append(child)
        return child

    def wait(self, stop: Callable[[], bool] = lambda: False) -> PoolStatus:
        if self.spec.teachers == 0:  # they come when a student searches
            return self._status()
        return wait_for_teacher(
            self.address, self.spec.start_s, self._hopeless, stop, tls=self.tls
        )

    def _hopeless(self) -> None:
        if not any(child.alive() for child in self.teachers):
            raise ClusterError(self.teachers[0].exit_report("ended before it could serve"))

    def _status(self) -> PoolStatus:
        return self._status_of(self.address, self.tls)

    def look(self) -> None:
        """Scheduler and teachers that die come back; the number follows the demand."""
        if self._still_to_start:
            self._start_more()
        if self.spec.replace_lost:
            self._replace()
        if self._follower is not None:
            self._follower.look(self._now())

    def _start_more(self) -> None:
        """Teachers that were asked for and wait: as many as the ready ones make room for.

        Raises:
            SchedulerUnreachable: it is being started again.
        """
        alive = sum(child.alive() for child in self.teachers)
        starting = alive - len(self._status().ready)
        for _ in range(min(self._still_to_start, max(0, _AT_ONCE - starting))):
            self._still_to_start -= 1
            self.add_teacher()

    def _replace(self) -> None:
        """What died comes back, later each time it dies again.

        Raises:
            ClusterError: the scheduler does not come up.
        """
        if not self.scheduler.alive():
            self.scheduler.stop()
            port = urlsplit(self.address).port or 0
            self.scheduler, _ = self._start_scheduler(port=port)
        if self.spec.chaos or self.spec.most is not None:
            return  # chaos has its own timetable, a pool that grows its own measure
        now = self._now()
        for child in self.teachers:
            if child.alive() or child.pid in self._replaced:
                continue
            self._replaced.add(child.pid)
            if child.process.returncode in MEANT_TO_END:
                continue
            self._back_at.append(now + min(_LONGEST_BACK_S, 2.0**self._deaths))
            self._deaths += 1
        due = [at for at in self._back_at if at <= now]
        self._back_at = [at for at in self._back_at if at > now]
        for _ in due:
            self.add_teacher()
        alive = sum(child.alive() for child in self.teachers)
        if not self._back_at and self._deaths and len(self._status().ready) >= alive:
            self._deaths = 0

    # Machines of a `DemandFollower`: each is a teacher

    def wanted(self) -> int:
        """Those that are still to be started count: the pool does not start them twice."""
        return sum(child.alive() for child in self.teachers) + self._still_to_start

    def grow(self, count: int) -> None:
        for _ in range(count):
            self.add_teacher()

    def withdraw(self, names: Sequence[str]) -> None:
        for number, child in enumerate(self.teachers):
            if f"teacher-{number}" in names and child.alive():
                child.process.send_signal(signal.SIGTERM)  # it drains first

    def close(self, *, scheduler_gone: bool = False) -> None:
        self._keeper.close()
        for child in [*self.teachers, self.scheduler]:
            child.stop()
        self.note.unlink(missing_ok=True)
        shutil.rmtree(self.folder / "scratch", ignore_errors=True)
        if self.spec.tls is None or self.spec.tls.temporary:
            forget(self.files)
