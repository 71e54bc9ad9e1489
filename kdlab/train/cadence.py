"""When a loop logs and saves: every so many seconds, every so many steps."""

import time
from collections.abc import Callable


class Cadence:
    """When one thing that a loop repeats is due.

    Args:
        every_s: seconds; None goes by steps alone.
        every_steps: None goes by seconds alone.
        clock: seconds; a loop that pauses may leave out its pauses.
    """

    def __init__(
        self,
        every_s: float | None,
        every_steps: int | None = None,
        *,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.every_s, self.every_steps, self._clock = every_s, every_steps, clock
        self.time, self.step = clock(), 0  # when it was done last

    def done(self, step: int) -> None:
        """It was done after this step, or begins to count there."""
        self.time, self.step = self._clock(), step

    def rate(self, step: int) -> float:
        """Steps a second since then."""
        return (step - self.step) / max(1e-9, self._clock() - self.time)

    def seconds_due(self) -> bool:
        return self.every_s is not None and self._clock() - self.time >= self.every_s

    def steps_due(self, step: int) -> bool:
        """Whether a whole multiple was reached since; the same on all ranks."""
        every = self.every_steps
        return every is not None and step // every > self.step // every

    def due(self, step: int) -> bool:
        return self.seconds_due() or self.steps_due(step)


def logging(
    seconds: float, steps: int | None, clock: Callable[[], float] = time.perf_counter
) -> Cadence:
    """The cadence of log lines: steps where the recipe names them, else seconds."""
    return Cadence(seconds if steps is None else None, steps, clock=clock)
