"""How often what has ended is started again, before it is left alone."""

from dataclasses import dataclass, field


@dataclass(slots=True)
class Restarts:
    """How often within how long; pure."""

    most: int  # restarts within the window; 0 never starts again
    within_s: float
    at: list[float] = field(default_factory=list)  # seconds: when those of the window were

    def allowed(self, now: float) -> bool:
        """Whether one more is; it counts then."""
        self.at = [t for t in self.at if now - t < self.within_s]
        if len(self.at) >= self.most:
            return False
        self.at.append(now)
        return True
