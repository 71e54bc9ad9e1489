"""Restarts a run's process from its newest checkpoint when it is killed from outside.

The process that `kdlab run` starts forks before it imports anything heavy: the child does the
work, the parent waits for it and costs a few MB. A child that a signal ended (the kernel,
short of memory; a crash in native code; a user's kill) is forked anew. An error that the run
reports, such as a loss that is not finite, would recur: it ends the run.

    signals go to the parent, which passes them on (kdlab stop);
    ending the process group ends both (kdlab stop --now);
    a parent that dies takes its child with it.
"""

import contextlib
import ctypes
import fcntl
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from pathlib import Path
from types import FrameType
from typing import NoReturn

from kdlab.events.log import EventLog
from kdlab.events.runs import RunDone, RunRestarted
from kdlab.experiment.folder import ENDED, RunFolder, taken
from kdlab.supervision.backoff import Backoff

_PASSED_ON = (signal.SIGINT, signal.SIGTERM)
_PR_SET_PDEATHSIG = 1


def watched(keeper: "WatchdogParent") -> None:
    """Fork workers until one ends for good; returns in each worker.

    The calling process never returns: it exits with the code of the last worker.
    """
    before = {number: signal.getsignal(number) for number in _PASSED_ON}
    while True:
        # A signal between the fork and its handler would reach the wrong one.
        signal.pthread_sigmask(signal.SIG_BLOCK, _PASSED_ON)
        asked_before = keeper.stopping  # while there was no child
        parent = os.getpid()
        keeper.child = keeper.fork()
        if not keeper.child:
            for number, handler in before.items():
                signal.signal(number, handler)
            _die_with(parent)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _PASSED_ON)
            return
        for number in _PASSED_ON:
            signal.signal(number, keeper.pass_on)
        if asked_before:
            keeper.pass_on(signal.SIGINT, None)
        # Signals since the fork are passed on here, once: a second one would kill all.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _PASSED_ON)
        _, status = keeper.waitpid(keeper.child, 0)
        if not keeper.starts_again(os.waitstatus_to_exitcode(status)):
            keeper.leave(keeper.code)


@dataclass(slots=True)
class WatchdogParent:
    """The parent: waits for the child, passes signals on, decides on restarts."""

    path: Path  # of the run's folder
    lock: int | None = (
        None  # of the folder; the child, which has it too, may have let go of it
    )
    fork: Callable[[], int] = os.fork
    waitpid: Callable[[int, int], tuple[int, int]] = os.waitpid
    kill: Callable[[int, int], None] = os.kill
    leave: Callable[[int], NoReturn] = os._exit
    now: Callable[[], float] = time.monotonic
    child: int = 0  # pid
    code: int = 0  # exit code of this process
    stopping: bool = False  # the user asked to stop
    restarts: Backoff | None = None  # read from the spec at the first crash

    def pass_on(self, number: int, frame: FrameType | None) -> None:
        self.stopping = True
        with contextlib.suppress(ProcessLookupError):  # between two children
            self.kill(self.child, number)

    def starts_again(self, code: int) -> bool:
        """Return whether to restart after a child ended with `code` (negative: a signal)."""
        self.code = code if code >= 0 else 128 - code
        if self.stopping or code >= 0 or -code in _PASSED_ON:
            return False
        folder = RunFolder(self.path)
        if folder.raw_status().state in ENDED:
            return False  # its status was complete
        if self.lock is not None and not taken(self.lock, fcntl.LOCK_EX):
            return False  # it had ended, and the run was resumed since
        if self.restarts is None:
            asked = folder.resolved().get("restart", {})
            self.restarts = Backoff(
                most=asked.get("most", 0), within_s=asked.get("within_s", 1.0)
            )
        restarts = self.restarts
        why = f"was killed by {signal.Signals(-code).name}"
        if restarts.wait_s(self.now()) < inf:
            restarted = RunRestarted(why=why, count=len(restarts.at), most=restarts.most)
            with contextlib.suppress(OSError):  # a full disk: the next process says so
                EventLog(folder.events).emit(restarted)
                folder.write_status(state="starting")
            return True
        hint = " (the kernel, short of memory?)" if -code == signal.SIGKILL else ""
        error = (
            f"The run's process {why}{hint}, after {len(restarts.at)} restarts within "
            f"{restarts.within_s:g} s: it is not started again (restart.most). Its newest "
            f"checkpoint is kept; continue with: {folder.resume_command}"
        )
        EventLog(folder.events).emit(RunDone(state="failed", result=None, error=error))
        folder.write_status(state="failed", exit_code=1, error=error, ended=time.time())
        self.code = 1
        return False


def _die_with(parent: int) -> None:
    """Have the kernel kill this process when its parent dies (Linux only)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before that
        os._exit(1)
