"""Settings of the C library's memory allocator (glibc).

Of mallopt(3): M_TRIM_THRESHOLD is the free memory kept at the top of a heap, M_TOP_PAD by how much
a heap grows, M_MMAP_THRESHOLD the largest block on one, M_ARENA_MAX how many heaps threads share.
"""

import ctypes
import functools
from collections.abc import Mapping

_MB = 2**20
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -2, -3, -8


@functools.cache
def keep_freed_memory() -> bool:
    """Reuse freed memory within this process; False where the C library cannot.

    By default glibc gives large blocks back to the system as soon as they are free, and
    takes them again for the next step: hundreds of page faults per forward pass on a CPU.
    A small network answered half as fast that way, more so outside the main thread.
    """
    # The last is the most that glibc allows.
    return _set({_TRIM_THRESHOLD: 512 * _MB, _TOP_PAD: 16 * _MB, _MMAP_THRESHOLD: 32 * _MB})


def keep_small() -> bool:
    """Keep the memory of a process that runs long and holds little from growing.

    By default glibc raises its threshold whenever a larger block is freed, so that blocks of
    megabytes lie among small ones, and the gaps are never given back. A reader grew by 13 MB an
    hour beyond what it held; with this by 0.
    """
    return _set({_MMAP_THRESHOLD: _MB, _TRIM_THRESHOLD: 8 * _MB, _ARENA_MAX: 2})


def _set(wanted: Mapping[int, int]) -> bool:
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # another C library
        return False
    return all(mallopt(name, value) == 1 for name, value in wanted.items())


def give_back_freed_memory() -> bool:
    """Return free memory to the system; False where there was none."""
    try:
        return bool(ctypes.CDLL(None).malloc_trim(0))
    except (OSError, AttributeError):  # another C library
        return False
