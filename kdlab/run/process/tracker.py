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
    """Follows the events of one run or sweep; what went wrong, or is late, is one of them."""

    def __init__(self, emit: Emit, late: str) -> None:
        self._emit, self._late = emit, late
        self._child: Child | None = None
        self._log = Path()  # of the process
        self.trouble: str | None = None  # why MLflow was not written, or not to the end

    def start(self, folder: Path) -> None:
        """Have what happens in the folder written."""
        self._log = folder / "tracking.log"
        try:
            self._child = Child("kdlab.tracking.follow", Followed(folder=folder), self._log)
        except (OSError, ClusterError) as error:  # tracking never stops a training
            self._failed(f"MLflow is not written: {error}")

    def _failed(self, why: str) -> None:
        self.trouble = why
        self._emit(Warned(message=why))

    def finish(self) -> None:
        """After the last event: it gets what it has not got yet."""
        if self._child is None:
            return
        try:
            code = self._child.process.wait(_PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._failed(self._late)
        else:
            if code:
                how = f"by signal {-code}" if code < 0 else f"with exit code {code}"
                self._failed(
                    f"MLflow was not written to the end: its process ended {how} (see "
                    f"{self._log}). The training is not concerned; `kdlab runs --sync` writes "
                    "the rest"
                )
        self._child.stop()
