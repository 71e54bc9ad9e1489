"""Signs of life of a process that does one long thing: it saves, evaluates or compiles."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_EVERY_S = 1.0
_MAX_S = 3600.0  # what takes longer than an hour hangs after all


@contextmanager
def alive(beat: Callable[[], None], at_most_s: float = _MAX_S) -> Iterator[None]:
    """Beats once a second from a thread while the block runs."""
    over = threading.Event()

    def keep() -> None:
        left = at_most_s
        while not over.wait(_EVERY_S) and left > 0:
            left -= _EVERY_S
            beat()

    thread = threading.Thread(target=keep, name="alive", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
