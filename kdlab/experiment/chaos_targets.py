"""Whom chaos can hit: the processes of a run."""

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
    """The teachers of a pool that are processes of this machine."""
    try:
        every = status(address, tls).teachers
    except SchedulerUnreachable:
        return {}  # the pool is gone; so are its teachers
    return {
        t.facts.pid: Target(t.facts.name, t.facts.pid, t.address)
        for t in every
        # A pid means something on its own machine only; an emulated one is of them all.
        if t.facts and "://127." in t.address and t.facts.device != "emulated"
    }


@dataclass(slots=True)
class OwnTargets:
    """The processes of the run that carries out the chaos itself."""

    pool: TeacherPool | None = None  # only teachers of a pool of this run can be hit
    ranks: RankTargets = list  # the processes that train
    known: Callable[[str, Files | None], dict[int, Target]] = by_pid

    def teachers(self) -> list[Target]:
        """Those that serve or load; one that just ended is none."""
        pool = self.pool
        if not (isinstance(pool, Pool) and pool.machines.adjustable):
            return []
        known = self.known(pool.address, pool.tls)
        return [t for pid, t in known.items() if pool.machines.has(t.name, pid)]

    def add_teacher(self) -> None:
        if isinstance(self.pool, Pool) and self.pool.machines.adjustable:
            self.pool.machines.add()

    # A spec that asks for more is refused: the timetable would end with what it hits.

    def main(self) -> list[Target]:
        return []

    processes = helpers = main

    def files(self, kind: str) -> list[Path]:
        return []


@contextmanager
def chaos_while(
    chaos: Chaos | None, emit: Emit, pool: TeacherPool | None, ranks: RankTargets
) -> Iterator[OwnTargets | None]:
    """The trouble that `chaos:` asks for, while a member trains; None is none."""
    if chaos is None:
        yield None
        return
    targets = OwnTargets(pool, ranks)
    runner = ChaosRunner(chaos, targets, emit, None if pool is None else pool.tls)
    try:
        yield targets
    finally:
        runner.stop()
