"""Machines for teachers that follow the demand of a pool: from none up, and back to none."""

import logging
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Self

from kdlab.cluster.coordination.coordinator_messages import PoolStatus, TeacherStatus
from kdlab.cluster.deployers.deployer import Machines
from kdlab.cluster.keeper import PoolKeeper
from kdlab.cluster.pool import status_of
from kdlab.cluster.teachers.teacher_host import machine_of
from kdlab.cluster.wires.security import Files
from kdlab.errors import SchedulerUnreachable
from kdlab.papers.edl_dist.beyond.pool_size import PoolLevel, PoolSize

_TICK_S = 0.5
_LONGEST_PAUSE_S = 60.0  # until machines that could not be had are asked for again


class DemandFollower:
    """Carries out papers/edl_dist/beyond/pool_size.py, twice a second; its unit is a machine."""

    def __init__(
        self,
        machines: Machines,
        tls: Files | None,
        size: PoolSize,
        status: Callable[[str, Files | None], PoolStatus] = status_of,
    ) -> None:
        self.machines, self.tls, self.size, self._status_of = machines, tls, size, status
        self._keeper = PoolKeeper("pool", _TICK_S, lambda: self.look(time.monotonic()))
        self._failures = 0  # in a row
        self._again_at = 0.0  # no machine is asked for before

    def begin(self) -> Self:
        """Follow it in a thread, until it is closed."""
        self._keeper.start()
        return self

    def look(self, now: float) -> None:
        """One look; machines that cannot be had are asked for later each time.

        Raises:
            SchedulerUnreachable: it is being started again.
        """
        try:
            self._resize(now)
        except SchedulerUnreachable:
            raise
        except Exception as error:  # whatever those who start machines raise
            pause_s = min(_LONGEST_PAUSE_S, 2.0**self._failures)
            self._failures += 1
            self._again_at = now + pause_s
            logging.getLogger("kdlab").warning("pool: %s In %g s.", error, pause_s)

    def _resize(self, now: float) -> None:
        status = self._status_of(self.machines.address, self.tls)
        resize = self.size.on_tick(level_of(status, self.machines.wanted(), now))
        if resize.withdraw:
            self.machines.withdraw(resize.withdraw)
        if resize.start and now >= self._again_at:
            self.machines.grow(resize.start)
            self._failures = 0

    def close(self) -> None:
        """From now on their number stays as it is."""
        self._keeper.close()


def level_of(status: PoolStatus, alive: int, now: float) -> PoolLevel:
    """What `PoolSize` looks at.

    Args:
        status: of the pool.
        alive: machines that were asked for, whether they are up or not.
        now: s, of a clock that never goes back.
    """
    teachers = defaultdict[str, list[TeacherStatus]](list)
    for teacher in status.teachers:
        if teacher.facts is not None and teacher.state in ("free", "assigned"):
            teachers[machine_of(teacher.facts.name)].append(teacher)
    t_t = {name: sum(t.t_t for t in these) for name, these in teachers.items()}
    return PoolLevel(
        time=now,
        missing=status.missing,
        t_t=sum(t_t.values()) / len(t_t) if t_t else 0.0,
        alive=alive,
        starting=max(0, alive - len(t_t)),
        free={
            name: t_t[name]
            for name, these in teachers.items()
            if all(t.state == "free" for t in these)
        },
    )
