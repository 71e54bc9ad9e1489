"""Threads of a process that make views: how many is measured, and results come ahead of need.

Decoding and resizing let go of the interpreter, so threads do what processes would, without a
copy between.
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

_EACH = 4  # images that a thread takes at a time
_TRIES = 3  # batches with each number of threads
_AS_GOOD = 0.95  # of the best rate: then fewer threads win
_AHEAD = 2  # batches that lie ready


class ThreadCount:
    """How many threads make views quickest: each number takes turns, then the best stays.

    Args:
        cores: the most; the numbers are its halves, down to 1.
    """

    def __init__(self, cores: int) -> None:
        numbers, number = [cores], cores
        while number > 1:
            number //= 2
            numbers.append(number)
        self._rates: dict[int, list[float]] = {n: [] for n in numbers}  # images/s
        self._chosen: int | None = None  # None: still measured

    def next(self) -> int:
        """For the next batch: of those with the fewest measurements the largest."""
        if self._chosen is not None:
            return self._chosen
        return min(self._rates, key=lambda n: (len(self._rates[n]), -n))

    def took(self, threads: int, images: int, seconds: float) -> None:
        """A batch was made; small ones, which do not keep all busy, say nothing."""
        if self._chosen is not None or images < 2 * _EACH * max(self._rates):
            return
        self._rates[threads].append(images / max(seconds, 1e-9))
        if min(map(len, self._rates.values())) < _TRIES:
            return
        rates = {n: median(found) for n, found in self._rates.items()}
        good = _AS_GOOD * max(rates.values())
        self._chosen = min(n for n, rate in rates.items() if rate >= good)


def usable_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@cache
def _pool(pid: int) -> ThreadPoolExecutor:
    """Threads of this process: a forked one has none of its parent's."""
    return ThreadPoolExecutor(usable_cores(), thread_name_prefix="views")


@cache
def _count(pid: int) -> ThreadCount:
    return ThreadCount(usable_cores())


def in_threads(work: Callable[[range], None], images: int, threads: int = 0) -> None:
    """Call `work` for all images, a few at a time; the caller's thread is one of them.

    Args:
        work: makes some, by their numbers.
        images: how many there are.
        threads: 0 is what measured best.

    Raises:
        Exception: what one of the calls did.
    """
    counted = None if threads else _count(os.getpid())
    threads = threads or _count(os.getpid()).next()
    some = iter([range(at, min(at + _EACH, images)) for at in range(0, images, _EACH)])

    def one() -> None:
        for numbers in some:  # a list's iterator gives each to one thread
            work(numbers)

    begin = time.perf_counter()
    others: list[Future[None]] = [
        _pool(os.getpid()).submit(one) for _ in range(min(threads, -(-images // _EACH)) - 1)
    ]
    try:
        one()
    except BaseException:
        for _ in some:  # nothing is left for the others
            pass
        raise
    finally:
        for other in others:
            other.exception()  # waits: nobody writes into the result after this
    for other in others:
        other.result()
    if counted is not None:
        counted.took(threads, images, time.perf_counter() - begin)


def made_ahead(
    make: Callable[[W], R], wanted: Iterable[W], ahead: int = _AHEAD
) -> Iterator[R]:
    """Results in the order of what is wanted, so many made before they are asked for.

    Closing the iterator waits for the one that is being made.
    """
    maker = ThreadPoolExecutor(1, thread_name_prefix="ahead")
    waiting = deque[Future[R]]()
    try:
        for one in wanted:
            waiting.append(maker.submit(make, one))
            if len(waiting) > ahead:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        maker.shutdown(cancel_futures=True)
