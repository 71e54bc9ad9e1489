"""Settings of the C library's allocator, for processes that live long and hold little."""

import ctypes

# Of mallopt (glibc's malloc.h): how large a block gets pages of its own, how much may lie free at
# the end of the heap, how many heaps the threads share.
_MMAP_THRESHOLD, _TRIM_THRESHOLD, _ARENA_MAX = -3, -1, -8
_SETTINGS = {_MMAP_THRESHOLD: 1 << 20, _TRIM_THRESHOLD: 8 << 20, _ARENA_MAX: 2}


def keep_small() -> None:
    """A process's memory stays as it is after its first minutes.

    By itself glibc raises the first threshold whenever a larger block is freed, so that blocks of
    megabytes come to lie among small ones, and what is between them is never given back. A reader
    grew by 13 MB an hour, by nothing that it held; with this by 0. Where the library is another
    one, nothing happens.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        for setting, value in _SETTINGS.items():
            mallopt(setting, value)
