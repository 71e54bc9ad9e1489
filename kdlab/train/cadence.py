"""Cadence of logging and saving: every N seconds or every N steps."""

import time
from collections.abc import Callable


class Cadence:
    """Timer that says when a repeated action of a loop is due.

    Args:
        every_s: interval in seconds; None uses steps only.
        every_steps: interval in steps; None uses seconds only.
        clock: in seconds; a loop may exclude its pauses.
    """

    def __init__(
        self,
        every_s: float | None,
        every_steps: int | None = None,
        *,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.every_s, self.every_steps, self._clock = every_s, every_steps, clock
        self.time, self.step = clock(), 0  # of the last time

    def done(self, step: int) -> None:
        """Record that it was done after this step, or that counting begins there."""
        self.time, self.step = self._clock(), step

    def rate(self, step: int) -> float:
        """Return steps per second since the last time."""
        return (step - self.step) / max(1e-9, self._clock() - self.time)

    def seconds_due(self) -> bool:
        return self.every_s is not None and self._clock() - self.time >= self.every_s

    def steps_due(self, step: int) -> bool:
        """Return whether a multiple of `every_steps` was reached since; equal on all ranks."""
        every = self.every_steps
        return every is not None and step // every > self.step // every

    def due(self, step: int) -> bool:
        return self.seconds_due() or self.steps_due(step)


def logging(
    seconds: float, steps: int | None, clock: Callable[[], float] = time.perf_counter
) -> Cadence:
    """Return the cadence of log lines: steps where the recipe sets them, else seconds."""
    return Cadence(seconds if steps is None else None, steps, clock=clock)
