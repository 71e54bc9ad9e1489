"""What unlike student resources reach together (EDL-Dist, section 5: future work).

Synchronous all-reduce waits for the slowest rank: the journal measures 44.6 % less
throughput for a V100 and a P4 together than for one V100. Ranks that get rows in
proportion to their speed (kdlab/papers/shares.py) end their steps together.
"""

from collections.abc import Sequence


def global_rate(rates: Sequence[float], shares: Sequence[float]) -> float:
    """Samples/s of synchronous training: all wait for the rank that ends last."""
    total = sum(shares)
    return min(rate * total / share for rate, share in zip(rates, shares, strict=True))
