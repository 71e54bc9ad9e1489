"""Heartbeats of a process during a long operation: saving, evaluating or compiling."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_EVERY_S = 1.0
_MAX_S = 3600.0  # an operation of more than an hour counts as a hang


@contextmanager
def alive(
    beat: Callable[[], None], at_most_s: float = _MAX_S, every_s: float = _EVERY_S
) -> Iterator[None]:
    """Call `beat` from a thread while the block runs, for at most `at_most_s`."""
    over = threading.Event()

    def keep() -> None:
        left = at_most_s
        while not over.wait(every_s) and left > 0:
            left -= every_s
            beat()

    thread = threading.Thread(target=keep, name="alive", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
