"""What a run takes of its machine: looked at every few seconds by whoever asks whether to stop."""

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
_SELDOM = 1000  # a pause is as long as so many looks, and this part of all the time


class MachineUse:
    """Emits what the processes of this run took: this one, and all that it has started here."""

    def __init__(self, emit: Emit, clock: Callable[[], float] = time.monotonic) -> None:
        self._emit, self._clock = emit, clock
        self._begin = self._looked = self._due = clock()
        self._seconds: dict[psutil.Process, float] = {}  # of a core, that each has had

    def look(self) -> None:
        """If it is due; a thousandth of the time goes to it at most."""
        now = self._clock()
        if now < self._due:
            return
        self._due = inf  # for other threads
        before, self._seconds, memory = self._seconds, {}, 0
        own = psutil.Process()
        for process in (own, *own.children(recursive=True)):
            with suppress(psutil.Error), process.oneshot():  # one may be gone by now
                self._seconds[process] = sum(process.cpu_times()[:2])
                held = process.memory_info()
                memory += held.rss - getattr(held, "shared", 0)
        if before:
            took = sum(had - before.get(one, 0.0) for one, had in self._seconds.items())
            share = 100 * took / (usable_cores() * max(1e-9, now - self._looked))
            self._emit(MachineUsed(cpu=share, memory=memory / 2**30, gpus=_gpus()))
        self._looked, end = now, self._clock()
        self._due = end + max(
            _EVERY_S, _SELDOM * (end - now), (end - self._begin) / _SELDOM
        )


def _gpus() -> list[tuple[float, float]]:
    """Percent and GiB taken of each that is visible, whoever has them."""
    with suppress(Exception):  # torch asks nvidia-ml-py, which need not be there
        return [
            (float(cuda.utilization(k)), cuda.device_memory_used(k) / 2**30)
            for k in range(cuda.device_count())
        ]
    return []
