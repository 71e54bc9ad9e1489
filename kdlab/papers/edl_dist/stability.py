"""The stability constraint of EDL-Dist: Formula 2 of the journal, section 3.2.

    D = lim (1/T) sum over t < T of ( E{S(t)} + E{I(t)} )  <  infinity

S(t) is the size of the soft labels stored in the student, I(t) the number of teachers.
The running mean of their sum is bounded when ut bounds the volume and the pool bounds the
number of teachers; the objective is that it is small. S is in megabytes here, since the
paper names no unit.
"""

from dataclasses import dataclass


@dataclass(slots=True)
class Stability:
    """Running mean of S(t) + I(t); the expectations are those of one run."""

    seconds: float = 0.0  # T, in the time of the events; the paper counts steps
    total: float = 0.0  # integral of S + I over time
    last_time: float | None = None  # seconds, of the last tick

    def on_tick(self, time: float, stored_mb: float, teachers: int) -> None:
        step = 0.0 if self.last_time is None else max(0.0, time - self.last_time)
        self.last_time = time
        self.seconds += step
        # Megabytes and teachers, added as printed
        self.total += step * (stored_mb + teachers)

    @property
    def mean(self) -> float:  # D, up to now
        return self.total / self.seconds if self.seconds else 0.0
