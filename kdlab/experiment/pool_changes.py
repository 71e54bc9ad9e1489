"""Teachers that come and go because somebody asked: carried out where the pool was started."""

import os
import signal
from collections.abc import Callable
from pathlib import Path

from kdlab.changes.change import AddTeacher, DrainTeacher, KillTeacher, Order, OrderReader
from kdlab.cluster.chaos import Target
from kdlab.cluster.keeper import PoolKeeper
from kdlab.cluster.pool import Pool
from kdlab.cluster.teachers.teacher_host import machine_of
from kdlab.events.event import Emit
from kdlab.events.general import Warned
from kdlab.events.teachers import ChaosCaused, TeacherAdded, TeacherDrained
from kdlab.experiment.chaos_targets import OwnTargets

_TICK_S = 0.2


class PoolOrders:
    """Reads the orders of `kdlab.run.handle.changes` and carries out those for teachers.

    Orders from before `since` belong to an earlier session. `targets` finds who there is.
    """

    def __init__(
        self,
        path: Path,
        pool: Pool,
        emit: Emit,
        since: float,
        *,
        targets: Callable[[Pool], OwnTargets] = OwnTargets,
        kill: Callable[[int, int], None] = os.kill,
    ) -> None:
        self._read, self._since = OrderReader(path), since
        self._pool, self._emit = pool, emit
        self._targets, self._kill = targets, kill
        self._keeper = PoolKeeper("orders", _TICK_S, self.look)

    def start(self) -> "PoolOrders":
        self._keeper.start()
        return self

    def look(self) -> None:
        """Carry out what is new."""
        for order in self._read():
            if order.time < self._since:
                continue
            try:
                self._execute(order)
            except Exception as error:  # of whatever kind: the next order must be heard
                said = f"{order.KIND} was not carried out: {error!r}"
                self._emit(Warned(message=said))

    def _execute(self, order: Order) -> None:
        match order:
            case AddTeacher():
                self._emit(TeacherAdded(by="user", pid=self._pool.machines.add()))
            case DrainTeacher(name=name) if target := self._target(name):
                self._emit(TeacherDrained(by="user", target=name, pid=target.pid))
                self._pool.machines.withdraw([machine_of(name)])
            case KillTeacher(name=name) if target := self._target(name):
                self._emit(
                    ChaosCaused(by="user", kind=order.KIND, target=name, pid=target.pid)
                )
                self._kill(target.pid, signal.SIGKILL)
            case DrainTeacher(name=name) | KillTeacher(name=name):
                self._emit(Warned(message=f"There is no teacher {name} here any more."))

    def _target(self, name: str) -> Target | None:
        """The teacher of this name among our own on this machine, if it lives."""
        return next(
            (t for t in self._targets(self._pool).teachers() if t.name == name), None
        )

    def close(self) -> None:
        self._keeper.close()
