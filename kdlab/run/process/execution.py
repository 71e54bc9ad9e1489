"""From a folder to a status: the frame that runs and sweeps share around their work.

However the work ends, the folder records it: its status has the state, the exit code and,
after an error, what to do. No error is lost with the process.
"""

import contextlib
import shutil
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import ClassVar

from kdlab.codec import to_builtins
from kdlab.config.home import write_json
from kdlab.errors import KdlabError, RunStopped, is_full
from kdlab.events.log import EventLog
from kdlab.events.runs import RunDone
from kdlab.events.sweeps import SweepDone
from kdlab.experiment.components import accept_components
from kdlab.experiment.folder import RunFolder
from kdlab.run.process.tracker import Tracker
from kdlab.tracking import PENDING

_RESERVE = ".reserve"  # in the folder while it works: a full disk has room for the end
_RESERVE_BYTES = 256 * 1024
_LITTLE_ROOM = 64 * 1024  # bytes


class Job(ABC):
    """The work of a run or of a sweep, from its folder to its result.

    `done` is the event of its end, `late` the warning where MLflow was not written in time.
    """

    done: ClassVar[type[RunDone | SweepDone]]
    late: ClassVar[str]

    def __init__(self, folder: RunFolder, stop: Callable[[], bool]) -> None:
        self.stop = stop
        self.log = EventLog(folder.events)
        self.name = str(folder.origin().experiment)
        self.begin = time.time()
        self._begun = time.monotonic()  # clocks of machines jump
        self.seconds_before = folder.raw_status().seconds or 0.0  # of earlier processes
        self.tracker = Tracker(self.log.emit, self.late)

    @property
    def seconds(self) -> float:
        """Seconds that all processes of this work took, this one included."""
        return self.seconds_before + time.monotonic() - self._begun

    @abstractmethod
    def main(self) -> object:
        """Do the whole work and return its result, a dataclass."""

    def end(
        self,
        state: str,
        result: Mapping[str, object] | None = None,
        error: str | None = None,
    ) -> None:
        """Emit the last event."""
        self.log.emit(self.done(state=state, result=result, error=error))

    @abstractmethod
    def resume_hint(self) -> str:
        """Message for a fault: what is saved, and the command that resumes from it."""


def execute(
    folder: RunFolder,
    make: Callable[[], Job],
    passes: Callable[[Exception], bool] = lambda error: False,
) -> int:
    """Do the work of a folder, write its end and its status, and return the exit code.

    An error for which `passes` is true does not end the work: its caller starts it again at once.
    """
    work: Job | None = None
    reserve = folder.path / _RESERVE
    try:
        reserve.write_bytes(bytes(_RESERVE_BYTES))
        accept_components(folder)
        work = make()
        folder.write_status(state="running", begin=work.begin)
        if work.stop():
            raise RunStopped("stopped by the user before anything began")
        result = to_builtins(work.main())
        write_json(folder.path / "result.json", result)
        work.end("finished", result=result)
        reserve.unlink(missing_ok=True)
        folder.write_status(
            state="finished",
            exit_code=0,
            result=result,
            ended=time.time(),
            tracking=work.tracker.so_far,
        )
    except (RunStopped, KeyboardInterrupt) as error:
        state, code, message = "stopped", RunStopped.exit_code, str(error)
    except Exception as error:  # the log keeps the traceback, the status says where it is
        full = is_full(error) or (
            # Perhaps of another process; checked before the reserve makes room.
            shutil.disk_usage(folder.path).free < _LITTLE_ROOM
        )
        reserve.unlink(missing_ok=True)  # for the traceback
        _print_traceback()
        meant = isinstance(error, KdlabError)
        if not meant and passes(error):
            folder.write_status(state="starting", created=time.time(), **_seconds(work))
            return 1
        state, code = "failed", error.exit_code if isinstance(error, KdlabError) else 1
        message = str(error) if meant else f"{type(error).__name__}: {error}"
        if full:
            message = _full(error, work, folder)
    else:
        _wait_for_mlflow(work, folder)
        return 0
    reserve.unlink(missing_ok=True)  # room for the last words
    facts: dict[str, object] = {}
    if work is not None:
        _write(lambda: work.end(state, error=message))
        facts = {**_seconds(work), "tracking": work.tracker.so_far}
    facts["ended"] = time.time()
    _write(lambda: folder.write_status(state=state, exit_code=code, error=message, **facts))
    if work is not None:
        _wait_for_mlflow(work, folder)
    return code


def _wait_for_mlflow(work: Job, folder: RunFolder) -> None:
    """Wait for the tracker; the status has the end already, which a kill here does not change."""
    if work.tracker.so_far == PENDING:
        with contextlib.suppress(KeyboardInterrupt):
            work.tracker.finish(stopped=work.stop())
            _write(lambda: folder.write_status(tracking=work.tracker.trouble))


def _full(error: Exception, work: Job | None, folder: RunFolder) -> str:
    then = (
        f"This process had not begun; what earlier ones saved is in {folder.path}. Make "
        f"room, then\n    {folder.resume_command}"
        if work is None
        else work.resume_hint()
    )
    return f"The disk did not take what was written: {str(error).rstrip('.')}. {then}"


def _write(write: Callable[[], None]) -> None:
    try:
        write()
    except OSError:
        _print_traceback()


def _print_traceback() -> None:
    """Print the traceback into the process's log."""
    # On a full disk the log may take nothing; status and last event say what it was.
    with contextlib.suppress(OSError):
        traceback.print_exc()


def _seconds(work: Job | None) -> dict[str, float]:
    """The status field `seconds`; empty where no work began, so that the older value stays."""
    return {} if work is None else {"seconds": work.seconds}
