"""How quick a teacher is, from what it answers."""

from dataclasses import dataclass

_NEW = 0.1  # weight of the newest


@dataclass(slots=True)
class RunningRate:
    """Running means of samples and of the seconds they took; their ratio is the rate.

    Not a mean of rates: what was ready long ago takes no time at all, and its turn before the more.
    """

    samples: float
    seconds: float

    def add(self, samples: float, seconds: float) -> float:
        self.samples += _NEW * (samples - self.samples)
        self.seconds += _NEW * (seconds - self.seconds)
        return self.samples / max(self.seconds, 1e-9)
