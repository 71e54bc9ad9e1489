"""Ctrl-C in a run's process, handled from its first moment on.

This module imports nothing heavy, so that a stop asked for while torch is still being
imported is a stop and not a death.
"""

import os
import signal
import threading
import time
from pathlib import Path
from types import FrameType

from kdlab.config.home import never_anew

_HEARD_S = 6.0  # until code asks whether to stop: a training does at each step
_LOOK_S, _LOOKS = 1.0, 3
_MADE_OF = "experiment.json"


class StopRequest:
    """The first interrupt asks for a soft stop; the second ends the process group.

    Code that polls it stops where all is saved. Code that does not, such as decoding images or
    measuring a teacher, gets KeyboardInterrupt in the main thread: a resume repeats that work.
    """

    def __init__(self) -> None:
        self.asked = self._heard = False
        self._looked = False  # code has polled it: an exception reaches somebody
        signal.signal(signal.SIGALRM, self._on_alarm)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._on_signal)
        signal.pthread_sigmask(
            signal.SIG_UNBLOCK, (signal.SIGINT, signal.SIGTERM)
        )  # `spawn` blocked them

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            os.killpg(os.getpgrp(), signal.SIGKILL)
        self.asked = True
        signal.setitimer(signal.ITIMER_REAL, _HEARD_S)

    def _on_alarm(self, number: int, frame: FrameType | None) -> None:
        if self._looked and not self._heard:
            self._heard = True
            raise KeyboardInterrupt(
                f"stopped by the user; what did not end within {_HEARD_S:g} s begins again"
            )

    def __call__(self) -> bool:
        self._looked, self._heard = True, self.asked
        return self.asked


def fill(folder: Path, lock: int) -> None:
    """Take over the inherited lock of a folder and write this process's id into it.

    From here on a signal for the folder reaches this process.
    """
    never_anew.add(folder)
    os.set_inheritable(lock, False)
    os.pwrite(lock, str(os.getpid()).encode(), 0)


def end_with(folder: Path, lock: int) -> None:
    """End this process group when the folder is deleted, as nobody could see or stop it then.

    Args:
        folder: of the run or sweep that this process works on.
        lock: file descriptor of the folder's lock; forks of this process close it.
    """
    held = [lock]

    def close_lock() -> None:  # in a fork of a fork another file has its number
        if held:
            os.close(held.pop())

    os.register_at_fork(after_in_child=close_lock)
    inode = folder.stat().st_ino

    def exists() -> bool:
        try:  # checks a file too: deleting file by file fails at files written meanwhile
            return folder.stat().st_ino == inode and bool((folder / _MADE_OF).stat())
        except FileNotFoundError:
            return False
        except OSError:  # a file system that is away for a moment
            return True

    def watch() -> None:
        away = 0
        while away < _LOOKS:  # a mount may be away for a moment
            time.sleep(_LOOK_S)
            away = 0 if exists() else away + 1
        os.killpg(os.getpgrp(), signal.SIGKILL)

    threading.Thread(target=watch, name="end with the folder", daemon=True).start()
