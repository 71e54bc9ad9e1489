"""MLflow written beside a run or a sweep, by a process that cannot stop it."""

import subprocess
from pathlib import Path

from kdlab.errors import ClusterError
from kdlab.events.event import Emit
from kdlab.events.general import Warned
from kdlab.supervision.children import Child
from kdlab.tracking.follow import Followed

_PATIENCE_S = 60.0


class Tracker:
    """Follows the events of one run or sweep.

    Args:
        emit: its events; what went wrong is told there.
        late: what to tell when the rest was not written in time.
    """

    def __init__(self, emit: Emit, late: str) -> None:
        self._emit, self._late = emit, late
        self._child: Child | None = None

    def start(self, module: str, folder: Path) -> None:
        """Have this module write what happens in the folder."""
        try:
            self._child = Child(module, Followed(folder=folder), folder / "tracking.log")
        except (OSError, ClusterError) as error:  # tracking never stops a training
            self._emit(Warned(message=f"MLflow is not written: {error}"))

    def finish(self) -> None:
        """After the last event: it gets what it has not got yet."""
        if self._child is None:
            return
        try:
            self._child.process.wait(_PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._emit(Warned(message=self._late))
        self._child.stop()
