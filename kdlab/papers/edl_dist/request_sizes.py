"""How many samples a teacher should be asked for at once, from how long some numbers take it."""

from collections.abc import Callable, Mapping

_REQUEST_S = 3e-4  # what a request costs both ends besides, whatever its size
_LONGEST_S = 0.5  # of a request
_AS_GOOD = 0.95  # of the best rate: then the larger one wins
_GOOD_ENOUGH = 0.8  # of the best rate: smaller ones waste the machine


def tried(batch: int, seconds: Callable[[int], float]) -> dict[int, float]:
    """Seconds of the student's batch, its half and so on, but of none beyond one that took long.

    `seconds` is asked of the smallest first.
    """
    found: dict[int, float] = {}
    for n in reversed(range(batch.bit_length())):
        size = batch >> n
        found[size] = seconds(size)
        if found[size] > _LONGEST_S:
            break
    return found


def best_and_least(seconds: Mapping[int, float]) -> tuple[int, int]:
    """(best, smallest) number of samples, of those whose seconds are known."""
    rates = {size: size / (took + _REQUEST_S) for size, took in seconds.items()}
    best = max(rates.values())
    return (
        max(size for size, rate in rates.items() if rate >= _AS_GOOD * best),
        min(size for size, rate in rates.items() if rate >= _GOOD_ENOUGH * best),
    )
