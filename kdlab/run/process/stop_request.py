"""Ctrl-C in a run's process: heard from its first moment on.

This module imports nothing heavy, so that a stop asked for while torch is still being
imported is a stop and not a death.
"""

import os
import signal
from types import FrameType


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
