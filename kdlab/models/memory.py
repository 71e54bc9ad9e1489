"""Memory that a process of many short tensor lives keeps instead of giving it back."""

import ctypes
import functools

# mallopt(3) of glibc
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD = -1, -2, -3
_KEEP = 512 * 2**20  # bytes of free memory at the top of a heap
_LARGEST_ON_HEAP = 32 * 2**20  # bytes; the most glibc allows
_GROW_BY = 16 * 2**20  # bytes


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
    wanted = (
        (_M_TRIM_THRESHOLD, _KEEP),
        (_M_TOP_PAD, _GROW_BY),
        (_M_MMAP_THRESHOLD, _LARGEST_ON_HEAP),
    )
    return all(mallopt(name, value) == 1 for name, value in wanted)
