"""Requests to add, drain or kill teachers, executed where the pool was started."""

import os
import signal
from collections.abc import Callable
from pathlib import Path

from kdlab.changes.change import AddTeacher, Change, ChangeReader, DrainTeacher, KillTeacher
from kdlab.cluster.chaos import Target
from kdlab.cluster.keeper import PoolKeeper
from kdlab.cluster.pool import Pool
from kdlab.cluster.teachers.teacher_host import machine_of
from kdlab.events.event import Emit
from kdlab.events.general import Warned
from kdlab.events.teachers import ChaosCaused, TeacherAdded, TeacherDrained
from kdlab.experiment.chaos_targets import OwnTargets

_TICK_S = 0.2


class TeacherChanges:
    """Read the changes of `kdlab.run.handle.changes` and execute those for teachers.

    Changes from before `since` belong to an earlier session. `targets` lists the teachers.
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
        self._read, self._since = ChangeReader(path), since
        self._pool, self._emit = pool, emit
        self._targets, self._kill = targets, kill
        self._keeper = PoolKeeper("changes", _TICK_S, self.poll)

    def start(self) -> "TeacherChanges":
        self._keeper.start()
        return self

    def poll(self) -> None:
        """Execute new changes."""
        for change in self._read():
            if change.time < self._since:
                continue
            try:
                self._execute(change)
            except Exception as error:  # any: the next change must still be read
                message = f"{change.KIND} failed: {error!r}"
                self._emit(Warned(message=message))

    def _execute(self, change: Change) -> None:
        match change:
            case AddTeacher():
                self._emit(TeacherAdded(by="user", pid=self._pool.machines.add()))
            case DrainTeacher(name=name) if target := self._target(name):
                self._emit(TeacherDrained(by="user", target=name, pid=target.pid))
                self._pool.machines.withdraw([machine_of(name)])
            case KillTeacher(name=name) if target := self._target(name):
                self._emit(
                    ChaosCaused(by="user", kind=change.KIND, target=name, pid=target.pid)
                )
                self._kill(target.pid, signal.SIGKILL)
            case DrainTeacher(name=name) | KillTeacher(name=name):
                self._emit(Warned(message=f"No teacher {name} runs on this machine."))

    def _target(self, name: str) -> Target | None:
        """Return the live teacher of this name that the pool runs on this machine."""
        return next(
            (t for t in self._targets(self._pool).teachers() if t.name == name), None
        )

    def close(self) -> None:
        self._keeper.close()
