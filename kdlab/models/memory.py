"""Memory that a process of many short tensor lives keeps instead of giving it back."""

import ctypes
import functools

# mallopt(3) of glibc: parameters and bytes
_WANTED = (
    (-1, 512 * 2**20),  # M_TRIM_THRESHOLD: free memory kept at the top of a heap
    (-2, 16 * 2**20),  # M_TOP_PAD: a heap grows by so much
    (-3, 32 * 2**20),  # M_MMAP_THRESHOLD: the largest on a heap, the most glibc allows
)


@functools.cache
def keep_freed_memory() -> bool:
    """Reuse freed memory within this process; False where the C library cannot.

    By default glibc gives large blocks back to the system as soon as they are free, and
    takes them again for the next step: hundreds of page faults per forward pass on a CPU.
    A small network answered half as fast that way, more so outside the main thread.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # another C library: its own habits
        return False
    return all(mallopt(name, value) == 1 for name, value in _WANTED)


def give_back_freed_memory() -> bool:
    """What is kept, to the system, where nothing is computed; False where there was nothing."""
    try:
        return bool(ctypes.CDLL(None).malloc_trim(0))
    except (OSError, AttributeError):  # another C library
        return False
