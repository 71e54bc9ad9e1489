"""Targets of chaos: the processes of a run."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from kdlab.cluster.chaos import Chaos, ChaosRunner, Target
from kdlab.cluster.coordination.coordinator_messages import PoolStatus
from kdlab.cluster.pool import Pool
from kdlab.cluster.schedulers import status_of
from kdlab.cluster.transport.security import Files
from kdlab.errors import SchedulerUnreachable
from kdlab.events.event import Emit
from kdlab.soft_labels.source import TeacherPool

RankTargets = Callable[[], list[Target]]


def by_pid(
    address: str,
    tls: Files | None,
    status: Callable[[str, Files | None], PoolStatus] = status_of,
) -> dict[int, Target]:
    """Return a pool's teachers on this machine, by process id."""
    try:
        teachers = status(address, tls).teachers
    except SchedulerUnreachable:
        return {}  # the pool has ended, and its teachers with it
    return {
        t.facts.pid: Target(t.facts.name, t.facts.pid, t.address)
        for t in teachers
        # A pid is valid on its own machine only; emulated teachers share one process.
        if t.facts and "://127." in t.address and t.facts.device != "emulated"
    }


@dataclass(slots=True)
class OwnTargets:
    """Targets in the run that executes its own chaos."""

    pool: TeacherPool | None = None  # a pool that this run started
    ranks: RankTargets = list  # the training processes
    find_targets: Callable[[str, Files | None], dict[int, Target]] = by_pid

    def teachers(self) -> list[Target]:
        """Return teachers that serve or load; none that ended meanwhile."""
        pool = self.pool
        if not (isinstance(pool, Pool) and pool.machines.adjustable):
            return []
        targets = self.find_targets(pool.address, pool.tls)
        return [t for pid, t in targets.items() if pool.machines.has(t.name, pid)]

    def add_teacher(self) -> None:
        if isinstance(self.pool, Pool) and self.pool.machines.adjustable:
            self.pool.machines.add()

    # Specs cannot hit the run's own process: the timetable would end with it.

    def main(self) -> list[Target]:
        return []

    processes = helpers = main

    def files(self, kind: str) -> list[Path]:
        return []


@contextmanager
def chaos_while(
    chaos: Chaos | None, emit: Emit, pool: TeacherPool | None, ranks: RankTargets
) -> Iterator[OwnTargets | None]:
    """Execute the spec's `chaos` while a member trains; yields None without chaos."""
    if chaos is None:
        yield None
        return
    targets = OwnTargets(pool, ranks)
    runner = ChaosRunner(chaos, targets, emit, None if pool is None else pool.tls)
    try:
        yield targets
    finally:
        runner.stop()
