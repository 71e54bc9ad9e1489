"""A simulated clock: it runs scheduled calls in the order of their times, without waiting."""

from collections.abc import Callable
from heapq import heappop, heappush


class Clock:
    def __init__(self) -> None:
        self.now = 0.0  # seconds
        self.events = 0  # calls made so far
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._number = 0  # calls at equal times run in the order of `after`

    def after(self, seconds: float, call: Callable[[], None]) -> None:
        self._number += 1
        heappush(self._queue, (self.now + max(0.0, seconds), self._number, call))

    def run(self, until: float, done: Callable[[], bool] = lambda: False) -> None:
        """Make all calls up to a time, or until `done`."""
        while self._queue and self._queue[0][0] <= until and not done():
            self.now, _, call = heappop(self._queue)
            self.events += 1
            call()
        if not done():
            self.now = until
