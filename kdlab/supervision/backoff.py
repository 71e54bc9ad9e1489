"""Decide when to retry what ended or did not answer, and when to give up."""

import sys
from dataclasses import dataclass, field
from math import inf

_MOST_STEPS = 60  # steps at most: 2 to this power is ages
_REMEMBERED = 1000  # tries to remember where any number is allowed


@dataclass(slots=True)
class Backoff:
    """Exponential backoff with at most `most` tries within `within_s` seconds; pure."""

    first_s: float = 0.0  # before the first try
    factor: float = 2.0  # of each wait to the one before
    longest_s: float = inf
    most: int = sys.maxsize  # tries within the window; 0 allows none
    within_s: float = inf
    at: list[float] = field(default_factory=list)  # seconds: tries in the window

    def wait_s(self, now: float = 0.0) -> float:
        """Record a try and return the seconds to wait before it; infinite where none is left."""
        recent = self.at[-_REMEMBERED:] if self.most == sys.maxsize else self.at
        self.at = [t for t in recent if now - t < self.within_s]
        if len(self.at) >= self.most:
            return inf
        self.at.append(now)
        steps = min(len(self.at) - 1, _MOST_STEPS)
        return min(self.longest_s, self.first_s * self.factor**steps)

    def succeeded(self) -> None:
        """Forget earlier failures."""
        self.at.clear()
