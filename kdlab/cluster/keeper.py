"""A thread that looks after something every so often: each pool, each host of teachers has one."""

import logging
import threading
from collections.abc import Callable


class PoolKeeper(threading.Thread):
    """Calls `look` every so many seconds; what goes wrong is said, and tried again."""

    def __init__(self, what: str, every_s: float, look: Callable[[], None]) -> None:
        super().__init__(name=f"keeper of {what}", daemon=True)
        self._what, self._every_s, self._look = what, every_s, look
        self._closing = threading.Event()

    def run(self) -> None:
        while not self._closing.wait(self._every_s):
            try:
                self._look()
            except Exception as error:
                logging.getLogger("kdlab").warning("%s: %s", self._what, error)

    def close(self) -> None:
        """No look is under way afterwards, and none comes."""
        self._closing.set()
        if self.is_alive():
            self.join()
