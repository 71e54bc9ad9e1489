"""Machines for teachers follow the demand of a pool: from none up, and back to none."""

import logging
from collections import defaultdict
from collections.abc import Callable

from kdlab.cluster.coordination.coordinator_messages import PoolStatus, TeacherStatus
from kdlab.cluster.machines import Machines
from kdlab.cluster.teachers.teacher_host import machine_of
from kdlab.errors import SchedulerUnreachable
from kdlab.papers.edl_dist.beyond.pool_size import PoolSize, PoolState
from kdlab.supervision.backoff import Backoff

_LONGEST_PAUSE_S = 60.0  # until a failed request for machines is repeated


class DemandFollower:
    """Applies papers/edl_dist/beyond/pool_size.py at each update; its unit is a machine.

    `rest` machines are still to be started once, whatever the demand. Failed requests and
    lost machines delay the next request, longer each time.
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
        # Failures in a row, without an update at which all machines were up.
        self._backoff = Backoff(1.0, longest_s=_LONGEST_PAUSE_S)
        self._again_at = 0.0  # no machine is requested before

    def update(self, now: float) -> None:
        """Adapt the number of machines to the demand now.

        Raises:
            SchedulerUnreachable: the scheduler is being restarted.
        """
        try:
            # Counted first: a machine that ends in between is handled at the next update.
            alive = self.machines.wanted()
            if self.machines.lost():
                self._pause(now)
            self._resize(alive, now)
        except SchedulerUnreachable:
            raise
        except Exception as error:  # whatever a deployer raises
            pause_s = self._pause(now)
            logging.getLogger("kdlab").warning("pool: %s Retry in %g s.", error, pause_s)

    def _pause(self, now: float) -> float:
        pause_s = self._backoff.wait_s(now)
        self._again_at = now + pause_s
        return pause_s

    def _resize(self, alive: int, now: float) -> None:
        size = self.size
        if alive >= size.least == size.most and not (self._rest or self._backoff.at):
            return  # the size is fixed, and all are there
        # Machines that are still to be started count: none is started twice.
        state = pool_state(self._status(), alive + self._rest, now)
        resize = size.on_tick(state)
        if resize.withdraw:
            self.machines.withdraw(resize.withdraw)
        start = resize.start + self._rest
        if start == state.starting == 0:
            self._backoff.succeeded()
        room = self.machines.at_once - (state.starting - self._rest)
        if (count := min(start, room)) > 0 and now >= self._again_at:
            self.machines.grow(count)
            self._rest -= min(self._rest, count)


def pool_state(status: PoolStatus, alive: int, now: float) -> PoolState:
    """State of a pool, as `PoolSize` needs it.

    Args:
        status: of the pool.
        alive: requested machines, whether they are up or not.
        now: seconds on a monotonic clock.
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
