"""How a batch is cut over unlike student resources (EDL-Dist, section 5: future work).

Synchronous all-reduce waits for the slowest rank: the journal measures 44.6 % less
throughput for a V100 and a P4 together than for one V100. Ranks that get rows in
proportion to their speed end their steps together; the gradient stays that of the whole
batch when each rank's mean is weighted by its rows.
"""

from collections.abc import Sequence


def cut(rows: int, shares: Sequence[float]) -> list[int]:
    """Rows of each rank: in proportion, at least one each, together all of them.

    Args:
        rows: of the whole batch, at least one per rank.
        shares: relative speed of each rank, > 0.

    Raises:
        ValueError: fewer rows than ranks, or a share that is not positive.
    """
    if rows < len(shares) or not shares or min(shares) <= 0:
        raise ValueError(f"cannot cut {rows} rows by the shares {list(shares)}")
    total = sum(shares)
    spare = rows - len(shares)
    ideal = [spare * share / total for share in shares]
    counts = [int(part) for part in ideal]
    left = spare - sum(counts)
    # The largest remainders get one more; the earlier rank among equals.
    order = sorted(range(len(shares)), key=lambda i: (counts[i] - ideal[i], i))
    for i in order[:left]:
        counts[i] += 1
    return [count + 1 for count in counts]


def global_rate(rates: Sequence[float], shares: Sequence[float]) -> float:
    """Samples/s of synchronous training: all wait for the rank that ends last."""
    total = sum(shares)
    return min(rate * total / share for rate, share in zip(rates, shares, strict=True))
