"""Sizes of the requests to a teacher, from the seconds that some sizes take (beyond the paper)."""

from collections.abc import Callable, Mapping

_REQUEST_S = 3e-4  # overhead of a request at both ends, whatever its size
_LONGEST_S = 0.5  # of a request
_AS_GOOD = 0.95  # of the best rate: the largest size that reaches it is best
_GOOD_ENOUGH = 0.8  # of the best rate: smaller requests waste the machine


def measure_sizes(batch: int, seconds: Callable[[int], float]) -> dict[int, float]:
    """Seconds by request size: the student's batch, its half and so on.

    `seconds` measures the smallest size first, and none beyond one that takes over 0.5 s.
    """
    measured: dict[int, float] = {}
    for n in reversed(range(batch.bit_length())):
        size = batch >> n
        measured[size] = seconds(size)
        if measured[size] > _LONGEST_S:
            break
    return measured


def best_and_least(seconds: Mapping[int, float]) -> tuple[int, int]:
    """(best, smallest) request size in samples, out of the measured ones."""
    rates = {size: size / (took + _REQUEST_S) for size, took in seconds.items()}
    best = max(rates.values())
    return (
        max(size for size, rate in rates.items() if rate >= _AS_GOOD * best),
        min(size for size, rate in rates.items() if rate >= _GOOD_ENOUGH * best),
    )
