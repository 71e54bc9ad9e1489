"""Less of something for single processes: limits of the system, lowered and lifted again.

A disk that is filled, or descriptors that are used up, would hit everybody on the machine. A
limit of a process hits that process alone, and with the same errors of the same calls.
"""

import resource
from contextlib import suppress

import psutil

FILE_SIZE = resource.RLIMIT_FSIZE  # bytes of a file, in /dev/shm too: EFBIG beyond
DESCRIPTORS = resource.RLIMIT_NOFILE  # open at once: EMFILE beyond


class Limits:
    """Soft limits that were lowered, and what they were before."""

    def __init__(self) -> None:
        self._before: dict[int, int] = {}  # by kind, of processes that nobody limits

    def lower(self, pid: int, what: int, to: int | None) -> psutil.Process | None:
        """Lower that of a process to so much, or to what it has now; None if it is gone."""
        with suppress(psutil.Error, OSError):
            process = psutil.Process(pid)
            soft, hard = process.rlimit(what)
            if what not in self._before:
                self._before[what] = soft
            least = process.num_fds() if to is None else to
            process.rlimit(what, (least, hard))
            return process
        return None

    def lift(self, process: psutil.Process, what: int) -> None:
        """Lift that of a process, and of those that it has started meanwhile."""
        with suppress(psutil.Error):
            for one in (process, *process.children(recursive=True)):
                with suppress(psutil.Error, OSError):
                    _, hard = one.rlimit(what)
                    one.rlimit(what, (self._before[what], hard))
