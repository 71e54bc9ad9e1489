"""The stability constraint of EDL-Dist: Formula 2 of the journal, section 3.2.

    D = lim (1/T) sum over t < T of ( E{S(t)} + E{I(t)} )  <  infinity

S(t) is the size of the soft labels stored in the student, I(t) the number of teachers.
The running mean of their sum is bounded when volume is bounded by ut and teachers by
what there is; that it is small is the objective. S is counted in megabytes here, since
the paper names no unit.
"""

from dataclasses import dataclass


@dataclass(slots=True)
class Stability:
    seconds: float = 0.0
    total: float = 0.0  # integral of S + I over time
    last_time: float | None = None

    def on_tick(self, time: float, stored_mb: float, teachers: int) -> None:
        step = 0.0 if self.last_time is None else max(0.0, time - self.last_time)
        self.last_time = time
        self.seconds += step
        self.total += step * (stored_mb + teachers)

    @property
    def mean(self) -> float:
        return self.total / self.seconds if self.seconds else 0.0
