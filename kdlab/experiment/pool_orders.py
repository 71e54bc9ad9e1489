"""Teachers that come and go because somebody asked: carried out where the pool was started."""

import os
import signal
import threading
from pathlib import Path
from typing import Any

from kdlab.cluster.chaos import Target
from kdlab.cluster.local_pool import RunningLocalPool
from kdlab.experiment.chaos_targets import OwnTargets
from kdlab.train.events import Emit, EventReader

_LOOK_S = 0.2


class PoolOrders:
    """Reads the orders of `kdlab.run.control` and carries out those for teachers.

    Args:
        path: of the orders.
        pool: that takes them.
        emit: what was done.
        since: older orders belong to an earlier session.
    """

    def __init__(
        self, path: Path, pool: RunningLocalPool, emit: Emit, since: float
    ) -> None:
        self._read, self._since = EventReader(path), since
        self._pool, self._emit = pool, emit
        self._closing = threading.Event()
        self._thread = threading.Thread(
            target=self._follow, name="pool-orders", daemon=True
        )
        self._thread.start()

    def _follow(self) -> None:
        while not self._closing.wait(_LOOK_S):
            for order in self._read():
                if order["time"] < self._since:
                    continue
                try:
                    self._carry_out(order)
                except Exception as error:  # of whatever kind: the next order must be heard
                    said = f"{order['event']} was not carried out: {error!r}"
                    self._emit("warning", message=said)

    def _carry_out(self, order: dict[str, Any]) -> None:
        match order["event"]:
            case "add_teacher":
                child = self._pool.add_teacher()
                self._emit("teacher_added", by="user", pid=child.pid)
            case "drain_teacher":  # it says goodbye, and answers what it was asked
                self._signal(order["name"], signal.SIGTERM, "teacher_drained")
            case "kill_teacher":
                self._signal(order["name"], signal.SIGKILL, "chaos")

    def _signal(self, name: str, number: signal.Signals, event: str) -> None:
        target = self._target(name)
        if target is None:
            self._emit("warning", message=f"There is no teacher {name} any more.")
            return
        kind = {"kind": "kill_teacher"} if event == "chaos" else {}
        self._emit(event, by="user", target=name, pid=target.pid, **kind)
        os.kill(target.pid, number)

    def _target(self, name: str) -> Target | None:
        """Of our own children only, and one that lives."""
        return next((t for t in OwnTargets(self._pool).teachers() if t.name == name), None)

    def close(self) -> None:
        self._closing.set()
        self._thread.join()
