"""Waiting in a benchmark for what other processes do."""

import time
from collections.abc import Callable

from kdlab.errors import ClusterError


def until(
    condition: Callable[[], bool],
    meanwhile: Callable[[], None] = lambda: None,
    *,
    patience_s: float = 120.0,
    missing: str = "what the benchmark waits for did not happen",
    tick_s: float = 0.01,
) -> None:
    """Until it holds.

    Raises:
        ClusterError: with `missing`, when it did not within the time.
    """
    deadline = time.monotonic() + patience_s
    while not condition():
        if time.monotonic() > deadline:
            raise ClusterError(f"{missing} (waited {patience_s:g} s)")
        meanwhile()
        time.sleep(tick_s)  # between looks
