"""Pace of a training over the last minute: remaining time and bottleneck."""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from kdlab.report.bottleneck import Bottleneck, bottleneck_of

_WINDOW_S = 60.0  # of the pace
_LEAST_S = 2.0  # least time for a pace


@dataclass(slots=True)
class Pace:
    """Steps of the last minute, without pauses."""

    steps: deque[tuple[float, int, Mapping[str, float]]] = field(
        default_factory=deque
    )  # time, step, figures of the source of soft labels

    def step(self, time: float, step: int, figures: Mapping[str, float]) -> None:
        """Add a step: seconds since 1970, number, counters of the source of soft labels."""
        if self.steps and step < self.steps[-1][1]:  # rolled back to a checkpoint
            self.steps.clear()
        self.steps.append((time, step, figures))
        while time - self.steps[0][0] > _WINDOW_S:
            self.steps.popleft()

    def reset(self) -> None:
        """Drop earlier steps, which do not compare with later ones."""
        self.steps.clear()

    def seconds_for(self, steps: int) -> float | None:
        """Return the predicted seconds for `steps` steps; None while unknown."""
        if not self._enough():
            return None
        done = self.steps[-1][1] - self.steps[0][1]
        return steps * self._seconds() / done if done else None

    def bottleneck(self) -> Bottleneck | None:
        """Return the slow side of the last minute; None while unknown."""
        if not self._enough():
            return None
        return bottleneck_of(self._seconds(), self.steps[-1][2], self.steps[0][2])

    def _enough(self) -> bool:
        return len(self.steps) > 1 and self._seconds() >= _LEAST_S

    def _seconds(self) -> float:
        return self.steps[-1][0] - self.steps[0][0]
