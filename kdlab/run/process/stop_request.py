"""Ctrl-C in a run's process: heard from its first moment on.

This module imports nothing heavy, so that a stop asked for while torch is still being
imported is a stop and not a death.
"""

import os
import signal
import threading
import time
from pathlib import Path
from types import FrameType

_LOOK_S, _LOOKS = 1.0, 3
_MADE_OF = "experiment.json"


class StopRequest:
    """The first interrupt asks for a soft stop; the second ends the process group."""

    def __init__(self) -> None:
        self.asked = False
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            os.killpg(os.getpgrp(), signal.SIGKILL)
        self.asked = True

    def __call__(self) -> bool:
        return self.asked


def end_with(folder: Path) -> None:
    """End this process group when the folder is deleted: it would go on with nobody to see it.

    Args:
        folder: that this process fills, of a run or of a sweep.
    """
    inode = folder.stat().st_ino

    def is_there() -> bool:
        try:  # a file of it too: who deletes file by file fails at what is written meanwhile
            return folder.stat().st_ino == inode and bool((folder / _MADE_OF).stat())
        except FileNotFoundError:
            return False
        except OSError:  # a file system that is away for a moment
            return True

    def watch() -> None:
        away = 0
        while away < _LOOKS:  # a mount may be away for a moment
            time.sleep(_LOOK_S)
            away = 0 if is_there() else away + 1
        os.killpg(os.getpgrp(), signal.SIGKILL)

    threading.Thread(target=watch, name="end with the folder", daemon=True).start()
