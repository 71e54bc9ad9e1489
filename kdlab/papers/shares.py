"""Rows of a batch for unlike devices, in proportion to their speed.

So a student's ranks (EDL-Dist, section 5) and the devices of a pipeline's stage (Pipe-BD,
section IV-C) end their steps together. The gradient stays that of the whole batch when each
device's mean is weighted by its rows.
"""

from collections.abc import Sequence


def shared_rows(rows: int, shares: Sequence[float]) -> tuple[int, ...]:
    """Rows of each device by largest remainder: at least one each, `rows` in total.

    Shares that are rows of this batch already are returned unchanged. Of equal shares the first
    get more: 256 rows over three are 86, 85, 85.

    Args:
        rows: rows of the whole batch, at least one per device.
        shares: relative speed of each device, > 0.

    Raises:
        ValueError: fewer rows than devices, or a share that is not positive.
    """
    if rows < len(shares) or not shares or min(shares) <= 0:
        raise ValueError(f"cannot share {rows} rows by the shares {list(shares)}")
    total = sum(shares)
    exact = [rows * share / total for share in shares]
    counts = [max(1, int(part)) for part in exact]
    by_need = sorted(range(len(counts)), key=lambda k: (counts[k] - exact[k], k))
    while sum(counts) < rows:
        counts[by_need.pop(0)] += 1
    while sum(counts) > rows:  # from the device that has the most above its share
        spare = [k for k in range(len(counts)) if counts[k] > 1]
        counts[max(spare, key=lambda k: counts[k] - exact[k])] -= 1
    return tuple(counts)
