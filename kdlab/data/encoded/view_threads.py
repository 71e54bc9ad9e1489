"""Threads that make views: their number is measured, and results are computed ahead.

Decoding and resizing release the GIL, so threads do what processes would, without copies between
them.
"""

import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from statistics import median
from typing import TypeVar

W = TypeVar("W")
R = TypeVar("R")

_EACH = 4  # images a thread takes at a time
_TRIES = 3  # batches with each number of threads
_AS_GOOD = 0.95  # of the best rate: then fewer threads win
_AHEAD = 2  # batches


class ThreadCount:
    """The number of threads that makes views fastest: candidates take turns, then the best stays.

    Args:
        cores: the largest candidate; the others are its halves, down to 1.
    """

    def __init__(self, cores: int) -> None:
        numbers, number = [cores], cores
        while number > 1:
            number //= 2
            numbers.append(number)
        self._rates: dict[int, list[float]] = {n: [] for n in numbers}  # images/s
        self._chosen: int | None = None  # None: still measuring

    def next(self) -> int:
        """Threads for the next batch: the largest candidate with the fewest measurements."""
        if self._chosen is not None:
            return self._chosen
        return min(self._rates, key=lambda n: (len(self._rates[n]), -n))

    def record(self, threads: int, images: int, seconds: float) -> None:
        """Record the time of a batch; batches too small to keep all threads busy are ignored."""
        if self._chosen is not None or images < 2 * _EACH * max(self._rates):
            return
        self._rates[threads].append(images / max(seconds, 1e-9))
        if min(map(len, self._rates.values())) < _TRIES:
            return
        rates = {n: median(measured) for n, measured in self._rates.items()}
        good = _AS_GOOD * max(rates.values())
        self._chosen = min(n for n, rate in rates.items() if rate >= good)


def usable_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@cache
def _pool(pid: int) -> ThreadPoolExecutor:
    """Thread pool of a process; a forked process does not inherit its parent's threads."""
    return ThreadPoolExecutor(usable_cores(), thread_name_prefix="views")


@cache
def _count(pid: int) -> ThreadCount:
    return ThreadCount(usable_cores())


def run_in_threads(work: Callable[[range], None], images: int, threads: int = 0) -> None:
    """Call `work` for all images, a few at a time, in threads that include the caller's.

    Args:
        work: is called with the numbers of some images.
        images: number of images.
        threads: 0 takes the number that measured fastest.

    Raises:
        Exception: that of a call.
    """
    count = None if threads else _count(os.getpid())
    threads = threads or _count(os.getpid()).next()
    chunks = iter([range(at, min(at + _EACH, images)) for at in range(0, images, _EACH)])

    def work_off() -> None:
        for numbers in chunks:  # a list's iterator gives each chunk to one thread
            work(numbers)

    begin = time.perf_counter()
    futures: list[Future[None]] = [
        _pool(os.getpid()).submit(work_off)
        for _ in range(min(threads, -(-images // _EACH)) - 1)
    ]
    try:
        work_off()
    except BaseException:
        for _ in chunks:  # leave nothing for the other threads
            pass
        raise
    finally:
        for future in futures:
            future.exception()  # waits: no thread writes into the result after this
    for future in futures:
        future.result()
    if count is not None:
        count.record(threads, images, time.perf_counter() - begin)


def computed_ahead(
    make: Callable[[W], R], items: Iterable[W], ahead: int = _AHEAD
) -> Iterator[R]:
    """Results of `make` for the items in order, up to `ahead` of them computed in advance.

    Closing the iterator waits for the result that is being computed.
    """
    maker = ThreadPoolExecutor(1, thread_name_prefix="ahead")
    waiting = deque[Future[R]]()
    try:
        for item in items:
            waiting.append(maker.submit(make, item))
            if len(waiting) > ahead:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        maker.shutdown(cancel_futures=True)
