"""When something that ended, or did not answer, is tried again, and when it is left alone."""

import sys
from dataclasses import dataclass, field
from math import inf

_GROWS = 60  # times at most: 2 to this power are ages
_KEPT = 1000  # tries that are remembered where any number is allowed


@dataclass(slots=True)
class Backoff:
    """Waits that grow from try to try, so many of them within so long; pure."""

    first_s: float = 0.0  # before the first try
    factor: float = 2.0  # of each wait to the one before
    longest_s: float = inf
    most: int = sys.maxsize  # tries within the window; 0 is none
    within_s: float = inf
    at: list[float] = field(default_factory=list)  # seconds: when those of the window were

    def wait_s(self, now: float = 0.0) -> float:
        """Seconds until one more try, which counts from now; infinite where none is left."""
        known = self.at[-_KEPT:] if self.most == sys.maxsize else self.at
        self.at = [t for t in known if now - t < self.within_s]
        if len(self.at) >= self.most:
            return inf
        self.at.append(now)
        steps = min(len(self.at) - 1, _GROWS)
        return min(self.longest_s, self.first_s * self.factor**steps)

    def succeeded(self) -> None:
        """What failed before does not count any more."""
        self.at.clear()
