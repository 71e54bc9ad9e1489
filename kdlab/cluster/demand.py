"""Machines for teachers that follow the demand of a pool: from none up, and back to none."""

import logging
from collections import defaultdict
from collections.abc import Callable

from kdlab.cluster.coordination.coordinator_messages import PoolStatus, TeacherStatus
from kdlab.cluster.machines import Machines
from kdlab.cluster.teachers.teacher_host import machine_of
from kdlab.errors import SchedulerUnreachable
from kdlab.papers.edl_dist.beyond.pool_size import PoolSize, PoolState
from kdlab.supervision.backoff import Backoff

_LONGEST_PAUSE_S = 60.0  # until machines that could not be had are asked for again


class DemandFollower:
    """Carries out papers/edl_dist/beyond/pool_size.py at each look; its unit is a machine.

    `rest` are still to be started whatever the demand is, each once. What cannot be had, or
    dies, comes later each time.
    """

    def __init__(
        self,
        machines: Machines,
        status: Callable[[], PoolStatus],
        size: PoolSize,
        rest: int = 0,
    ) -> None:
        self.machines, self._status, self.size = machines, status, size
        self._rest = rest
        # Failures in a row, without a look at which all were there.
        self._backoff = Backoff(1.0, longest_s=_LONGEST_PAUSE_S)
        self._again_at = 0.0  # no machine is asked for before

    def look(self, now: float) -> None:
        """One look.

        Raises:
            SchedulerUnreachable: it is being started again.
        """
        try:
            # Asked first: who ends between the two is seen to at the next look.
            alive = self.machines.wanted()
            if self.machines.lost():
                self._pause(now)
            self._resize(alive, now)
        except SchedulerUnreachable:
            raise
        except Exception as error:  # whatever those who start machines raise
            pause_s = self._pause(now)
            logging.getLogger("kdlab").warning("pool: %s In %g s.", error, pause_s)

    def _pause(self, now: float) -> float:
        pause_s = self._backoff.wait_s(now)
        self._again_at = now + pause_s
        return pause_s

    def _resize(self, alive: int, now: float) -> None:
        size = self.size
        if alive >= size.least == size.most and not (self._rest or self._backoff.at):
            return  # nobody has to be asked
        # Those that are still to be started count: none is started twice.
        level = level_of(self._status(), alive + self._rest, now)
        resize = size.on_tick(level)
        if resize.withdraw:
            self.machines.withdraw(resize.withdraw)
        start = resize.start + self._rest
        if start == level.starting == 0:
            self._backoff.succeeded()
        room = self.machines.at_once - (level.starting - self._rest)
        if (count := min(start, room)) > 0 and now >= self._again_at:
            self.machines.grow(count)
            self._rest -= min(self._rest, count)


def level_of(status: PoolStatus, alive: int, now: float) -> PoolState:
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
    return PoolState(
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
