"""MLflow for a run or a sweep, written by a process whose failure cannot stop it."""

import logging
import threading
import time
from math import inf
from pathlib import Path

from kdlab.errors import ClusterError
from kdlab.events.event import Emit
from kdlab.events.general import Warned
from kdlab.supervision.backoff import Backoff
from kdlab.supervision.children import Child, StartChild
from kdlab.tracking import PENDING
from kdlab.tracking.follow import FollowedJob

_PATIENCE_S, _STOPPED_S = 60.0, 3.0
_RESTARTS, _RESTARTS_S = 5, 600.0  # restarts within these seconds, then none
_AGAIN_S = 60.0  # where MLflow took nothing: a moment later it would take no more


class Tracker:
    """Writes the events of one run or sweep to MLflow; trouble and delay are warnings among them.

    A process that ends early is restarted and continues at the position that MLflow has.
    """

    def __init__(self, emit: Emit, late: str, start: StartChild = Child) -> None:
        self._emit, self._late, self._start_child = emit, late, start
        self._folder = self._log = Path()  # of the run or sweep; output of the child
        self._child: Child | None = None
        self._watcher: threading.Thread | None = None  # starts it again
        self._over = threading.Event()  # nothing more happens in the folder
        self._closed = False  # nobody waits for it any longer
        self.trouble: str | None = None  # why MLflow was not written, or not to the end

    @property
    def so_far(self) -> str | None:
        """The status field `tracking` before `finish`; afterwards `trouble` has it."""
        return self.trouble if self._watcher is None else PENDING

    def start(self, folder: Path) -> None:
        """Start writing the events of the folder to MLflow."""
        self._folder, self._log = folder, folder / "tracking.log"
        if self._start():
            self._watcher = threading.Thread(
                target=self._watch, name="tracker", daemon=True
            )
            self._watcher.start()

    def _start(self) -> bool:
        """Start the child; tracking never stops a training, so an error becomes a warning."""
        followed = FollowedJob(folder=self._folder)
        try:
            self._child = self._start_child("kdlab.tracking.follow", followed, self._log)
        except (OSError, ClusterError) as error:
            self._failed(f"MLflow is not written: {error}")
            return False
        return True

    def _failed(self, why: str) -> None:
        self.trouble = why
        self._warn(why)

    def _warn(self, message: str) -> None:
        try:
            self._emit(Warned(message=message))
        except OSError as error:  # a full disk ends the run by itself, not by this
            logging.warning("%s (not among the events: %s)", message, error)

    def _watch(self) -> None:
        """Restart the child until everything is written or restarts run out."""
        again = Backoff(_AGAIN_S, factor=1.0, most=_RESTARTS, within_s=_RESTARTS_S)
        while self._child is not None and (code := self._child.process.wait()):
            if self._closed:
                return
            how = f"by signal {-code}" if code < 0 else f"with exit code {code}"
            last_try = self._over.is_set() and code > 0  # MLflow itself refuses
            if last_try or (wait_s := again.wait_s(time.monotonic())) == inf:
                self._failed(
                    f"MLflow was not written to the end: its process ended {how} (see "
                    f"{self._log}). The training is not affected; `kdlab runs --sync` writes "
                    "the rest"
                )
                return
            self._warn(
                f"The MLflow writer ended {how} (see {self._log}); it restarts and continues "
                "where it was"
            )
            self._child.stop()
            self._over.wait(wait_s if code > 0 else 0.0)
            if not self._start():
                return

    def finish(self, *, stopped: bool = False) -> None:
        """Wait after the last event until MLflow has it; only briefly where the work `stopped`."""
        if self._watcher is None:
            return
        self._over.set()
        self._watcher.join(_STOPPED_S if stopped else _PATIENCE_S)
        if self._watcher.is_alive():
            self._closed = True
            self._failed(self._late)
        if self._child is not None:
            self._child.stop()
