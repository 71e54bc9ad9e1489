"""A thread that maintains something at regular times: each pool, each host of teachers."""

import logging
import threading
from collections.abc import Callable


class PoolKeeper(threading.Thread):
    """Calls `update` every `every_s` seconds; logs its errors and continues."""

    def __init__(self, what: str, every_s: float, update: Callable[[], None]) -> None:
        super().__init__(name=f"keeper of {what}", daemon=True)
        self._what, self._every_s, self._update = what, every_s, update
        self._closing = threading.Event()

    def run(self) -> None:
        while not self._closing.wait(self._every_s):
            try:
                self._update()
            except Exception as error:
                logging.getLogger("kdlab").warning("%s: %s", self._what, error)

    def close(self) -> None:
        """Stop the thread; after it no update runs."""
        self._closing.set()
        if self.is_alive():
            self.join()
