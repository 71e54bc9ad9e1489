"""Heartbeats in shared memory: the step of a rank and the time it wrote it.

Writing needs no system call, and the page cache keeps the heartbeat when the process dies.
Times are of the machine's monotonic clock, which all its processes share.
"""

import struct
import time
from pathlib import Path
from typing import NamedTuple

from kdlab.config.home import mapped

_FORM = "<qqd"


class Heartbeat(NamedTuple):
    generation: int
    step: int
    time: float  # seconds on the monotonic clock


class HeartbeatFile:
    def __init__(self, path: Path) -> None:
        self._map = mapped(path, struct.calcsize(_FORM))

    def beat(self, generation: int, step: int) -> None:
        struct.pack_into(_FORM, self._map, 0, generation, step, time.monotonic())

    def read(self) -> Heartbeat:
        return Heartbeat(*struct.unpack_from(_FORM, self._map, 0))
