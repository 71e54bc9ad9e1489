"""Teachers on this machine: a scheduler and teachers, each a separate process."""

import logging
import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from threading import RLock
from typing import Annotated, Literal

from kdlab.cluster.child_configs import TeacherConfig
from kdlab.cluster.coordination.lease_store import store_faults
from kdlab.cluster.limits import free_memory, usable_cores
from kdlab.cluster.machines import Machines
from kdlab.cluster.pool import ComputingPoolSpec, LocalTeacherCount, PoolParts, RunningPool
from kdlab.cluster.teachers.teacher_host import start_teacher
from kdlab.cluster.transport.roles import MEANT_TO_END
from kdlab.cluster.transport.security import Tls, pool_credentials
from kdlab.config import Fault, Range, register
from kdlab.config.spec import POSITIVE
from kdlab.errors import BadInput
from kdlab.papers.edl_dist.beyond.pool_size import PoolSize
from kdlab.supervision.children import Child

_TEACHER_BYTES = 350e6  # least memory of a teacher's process, with torch
_PER_CORE = 16  # teachers; more would only take turns


@register("cluster/local_pool")
@dataclass(frozen=True, kw_only=True)
class LocalPool(ComputingPoolSpec):
    """Teachers as processes on this machine, started with the run and ended with it.

    teachers: how many at the start.
    most: the pool may grow to this number while a student searches, and shrinks to `least`
        when teachers are idle; null keeps the number fixed.
    idle_s: a teacher that no student holds for this time is withdrawn.
    replace_lost: a teacher that dies is restarted, after 1, 2, 4 ... seconds, unless it
        was withdrawn or refused; and so is a scheduler that dies.
    start_s: time for the scheduler and the first teacher to come up.
    tls: certificates of your own for all traffic of the pool; null makes them for each run,
        and a token for the soft labels. Nobody else on this machine can connect.
    store: redis://... keeps the leases in Redis; null is a file in the run's folder. A
        password is named, not written: redis://:<env:KDLAB_NAME>@host or <secret:NAME>.
    chaos: teachers obey orders of `chaos:` to cut their network; set by it.
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
        yield from store_faults(self.store, local=True)
        if self.most is None and self.teachers < 1:
            yield Fault("teachers", "is 0; a pool that does not grow needs at least one")
        if self.most is not None and not self.least <= self.teachers <= self.most:
            yield Fault(
                "teachers",
                f"is {self.teachers}, must lie between least ({self.least}) and most "
                f"({self.most})",
            )

    def check(self) -> None:
        """Check that this machine has room for the teachers.

        Raises:
            BadInput: it has no room for them.
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

    def parts(self, folder: Path) -> PoolParts:
        fixed = self.teachers if self.replace_lost and not self.chaos else 0
        size = PoolSize(fixed, fixed, inf)
        if self.most is not None:
            size = PoolSize(self.least, self.most, self.idle_s)
        return PoolParts(
            tls=pool_credentials(self.tls, folder),
            scheduler={"store": self.store, "start_s": self.start_s},
            machines=lambda pool: LocalTeachers(pool, self, size),
            size=size,
            first=self.teachers,
            ready=min(1, self.teachers),
            start_s=self.start_s,
            replaces=self.replace_lost,
        )

    def local_teachers(self) -> LocalTeacherCount:
        gpu = {"cuda": True, "cpu": False}.get(self.device)
        return LocalTeacherCount(
            self.teachers, self.most or self.teachers, self.threads, gpu
        )


class LocalTeachers(Machines):
    """Teachers of a pool as processes on this machine; `size` bounds their number."""

    adjustable = True
    at_once = 4  # starting takes much memory and all cores

    def __init__(self, pool: RunningPool, spec: LocalPool, size: PoolSize) -> None:
        self.pool, self.spec, self.size = pool, spec, size
        self.children: list[Child] = []
        self._lock = RLock()  # the keeper and threads that add teachers
        self._ended: set[int] = set()  # numbers of those that `lost` has handled
        self._keeps = spec.most is None and size.most > 0  # whether the number is fixed

    def add(self) -> int:
        with self._lock:
            self.grow(1)
            self._keep(+1)
            return self.children[-1].pid

    def grow(self, count: int) -> None:
        with self._lock:
            for _ in range(count):
                self.children.append(self._start(len(self.children)))

    def _start(self, number: int) -> Child:
        spec, name = self.spec, f"teacher-{number}"
        config = TeacherConfig(
            scheduler=self.pool.address,
            name=name,
            host="127.0.0.1",
            threads=spec.threads,
            scratch=str(self.pool.folder / "scratch"),
            device=spec.device,
            number=number,
            tls=self.pool.tls,
            chaos=spec.chaos,
        )
        log = self.pool.folder / f"{name}.log"
        return start_teacher(self.pool.start_child, config, log)

    def wanted(self) -> int:
        return sum(child.alive() for child in self.children)

    def withdraw(self, names: Sequence[str]) -> None:
        for number, child in enumerate(self.children):
            if f"teacher-{number}" in names and child.alive():
                child.process.send_signal(signal.SIGTERM)  # it drains, then ends

    def lost(self) -> bool:
        """True where a teacher died that was neither withdrawn nor refused."""
        died = False
        with self._lock:
            for number, child in enumerate(self.children):
                if child.alive() or number in self._ended:
                    continue
                self._ended.add(number)
                child.stop()  # its pipes are closed
                if child.process.returncode in MEANT_TO_END:
                    self._keep(-1)
                else:
                    died = True
                    logging.getLogger("kdlab").warning("%s", child.exit_report("died"))
        return died

    def _keep(self, more: int) -> None:
        if self._keeps:
            self.size.least = self.size.most = self.size.least + more
