"""Signs of life of a process that does one long thing: it saves, evaluates or compiles."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_EVERY_S = 1.0
_MAX_S = 3600.0  # what takes longer than an hour hangs after all


@contextmanager
def alive(
    beat: Callable[[], None], at_most_s: float = _MAX_S, every_s: float = _EVERY_S
) -> Iterator[None]:
    """Beats from a thread while the block runs, but not for longer than `at_most_s`."""
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
