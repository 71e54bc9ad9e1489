"""From a folder to a status: what a run and a sweep do alike around their work.

However the work ends, the folder says so: its status has the state, the exit code and,
if it went wrong, words of what to do. An error is never left to a process that dies.
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
    """A run's, or a sweep's, from its folder to its result.

    `done` is the event of its end, `late` what people are told when MLflow was not written in time.
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
        """That all its processes took, this one included."""
        return self.seconds_before + time.monotonic() - self._begun

    @abstractmethod
    def main(self) -> object:
        """The whole work; its result, a dataclass."""

    def end(
        self,
        state: str,
        result: Mapping[str, object] | None = None,
        error: str | None = None,
    ) -> None:
        """The last event."""
        self.log.emit(self.done(state=state, result=result, error=error))

    @abstractmethod
    def go_on(self) -> str:
        """What is kept after a fault, and the command that goes on from it."""


def execute(
    folder: RunFolder,
    make: Callable[[], Job],
    passes: Callable[[Exception], bool] = lambda error: False,
) -> int:
    """The whole work, its end and its status; the exit code.

    An error that `passes` does not end it: somebody starts it again at once.
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
            # Of another process perhaps; looked at before the reserve makes room.
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
    """The status says already how the work ended: who is killed or stopped here has ended so."""
    if work.tracker.so_far == PENDING:
        with contextlib.suppress(KeyboardInterrupt):
            work.tracker.finish(stopped=work.stop())
            _write(lambda: folder.write_status(tracking=work.tracker.trouble))


def _full(error: Exception, work: Job | None, folder: RunFolder) -> str:
    then = (
        f"This process has begun nothing; what earlier ones saved is in {folder.path}. Make "
        f"room, then\n    {folder.resume_command}"
        if work is None
        else work.go_on()
    )
    return f"The disk did not take what was written: {error}. {then}"


def _write(words: Callable[[], None]) -> None:
    try:
        words()
    except OSError:
        _print_traceback()


def _print_traceback() -> None:
    """Into the process's log."""
    # On a full disk the log may take nothing; status and last event say what it was.
    with contextlib.suppress(OSError):
        traceback.print_exc()


def _seconds(work: Job | None) -> dict[str, float]:
    """Seconds of all processes of this work; what earlier ones wrote stays if there is none."""
    return {} if work is None else {"seconds": work.seconds}
