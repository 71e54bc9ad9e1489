"""How fast a training goes now: for the time that is left, and for who waits for whom."""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from kdlab.report.bottleneck import Bottleneck, bottleneck_of

_WINDOW_S = 60.0  # that the pace is taken over
_LEAST_S = 2.0  # before something is said of it


@dataclass(slots=True)
class Pace:
    """Steps of the last minute; a pause is no part of it."""

    seen: deque[tuple[float, int, Mapping[str, float]]] = field(
        default_factory=deque
    )  # time, step, figures of the source of soft labels

    def step(self, time: float, step: int, figures: Mapping[str, float]) -> None:
        """After a step: seconds since 1970, and what its source of soft labels has counted."""
        if self.seen and step < self.seen[-1][1]:  # it went back to a checkpoint
            self.seen.clear()
        self.seen.append((time, step, figures))
        while time - self.seen[0][0] > _WINDOW_S:
            self.seen.popleft()

    def forget(self) -> None:
        """What comes is not to be compared with what was."""
        self.seen.clear()

    def seconds_for(self, steps: int) -> float | None:
        """Seconds that this many steps will take; None while nothing is known."""
        if not self._enough():
            return None
        done = self.seen[-1][1] - self.seen[0][1]
        return steps * self._seconds() / done if done else None

    def bottleneck(self) -> Bottleneck | None:
        """The slow side of the last minute; None while nothing is known."""
        if not self._enough():
            return None
        return bottleneck_of(self._seconds(), self.seen[-1][2], self.seen[0][2])

    def _enough(self) -> bool:
        return len(self.seen) > 1 and self._seconds() >= _LEAST_S

    def _seconds(self) -> float:
        return self.seen[-1][0] - self.seen[0][0]
