"""Machine use of a run: its share of the cores, memory and GPUs, sampled every few seconds."""

import time
from collections.abc import Callable
from contextlib import suppress
from math import inf

import psutil
from torch import cuda

from kdlab.cluster.limits import usable_cores
from kdlab.events.event import Emit
from kdlab.events.runs import MachineUsed

_EVERY_S = 5.0
_SELDOM = 1000  # a pause is at least this many samples long, and this part of the run


class MachineUse:
    """Emits what this process and its descendants on this machine used."""

    def __init__(self, emit: Emit, clock: Callable[[], float] = time.monotonic) -> None:
        self._emit, self._clock = emit, clock
        self._begin = self._sampled_at = self._due = clock()
        self._seconds: dict[psutil.Process, float] = {}  # CPU seconds of each

    def update(self) -> None:
        """Emit a sample where one is due; sampling takes a thousandth of the time at most."""
        now = self._clock()
        if now < self._due:
            return
        self._due = inf  # keeps other threads out
        before, self._seconds, memory = self._seconds, {}, 0
        root = psutil.Process()
        for process in (root, *root.children(recursive=True)):
            with suppress(psutil.Error), process.oneshot():  # it may have ended
                self._seconds[process] = sum(process.cpu_times()[:2])
                held = process.memory_info()
                memory += held.rss - getattr(held, "shared", 0)
        if before:
            took = sum(had - before.get(p, 0.0) for p, had in self._seconds.items())
            share = 100 * took / (usable_cores() * max(1e-9, now - self._sampled_at))
            self._emit(MachineUsed(cpu=share, memory=memory / 2**30, gpus=_gpus()))
        self._sampled_at, end = now, self._clock()
        self._due = end + max(
            _EVERY_S, _SELDOM * (end - now), (end - self._begin) / _SELDOM
        )


def _gpus() -> list[tuple[float, float]]:
    """Percent busy and GiB used of each visible GPU, by all processes."""
    with suppress(Exception):  # torch asks nvidia-ml-py, which need not be there
        return [
            (float(cuda.utilization(k)), cuda.device_memory_used(k) / 2**30)
            for k in range(cuda.device_count())
        ]
    return []
