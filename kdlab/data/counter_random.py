"""Random numbers that depend on their coordinates alone: (seed, epoch, sample id, draw).

Two processes, on two machines, with any batch order, get the same number for the same
coordinates; that is what lets a teacher make the student's view from a reference.
The mixing function is SplitMix64 (Steele, Lea, Flood 2014), on unsigned 64-bit words.
"""

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)


def _mix(word: NDArray[np.uint64]) -> NDArray[np.uint64]:
    word = word + _GOLDEN  # arrays wrap around without a warning
    word = (word ^ (word >> np.uint64(30))) * _MIX_1
    word = (word ^ (word >> np.uint64(27))) * _MIX_2
    return word ^ (word >> np.uint64(31))


@lru_cache(64)  # the next batches need the same
def _start(seed: int, epoch: int) -> NDArray[np.uint64]:
    start = _mix(np.array([seed & (2**64 - 1)], dtype=np.uint64))
    return _mix(start ^ np.uint64(epoch & (2**64 - 1)))


def words(seed: int, epoch: int, ids: NDArray[np.int64], draws: int) -> NDArray[np.uint64]:
    """(N, draws) independent 64-bit words."""
    per_id = _mix(_start(seed, epoch) ^ ids.astype(np.uint64))
    return _mix(per_id[:, None] ^ np.arange(draws, dtype=np.uint64)[None, :])


def uniforms(
    seed: int, epoch: int, ids: NDArray[np.int64], draws: int
) -> NDArray[np.float64]:
    """(N, draws) numbers in [0, 1), 53 bits each."""
    return (words(seed, epoch, ids, draws) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def permutation(seed: int, epoch: int, ids: NDArray[np.int64]) -> NDArray[np.int64]:
    """The ids in an order that depends on (seed, epoch) alone."""
    # -1 keeps the order's words apart from those of the augmentation.
    keys = words(~seed, epoch, ids, 1)[:, 0]
    return ids[np.argsort(keys, kind="stable")]
