"""The size of a pool: more teachers while a student searches, fewer when some are idle.

Beyond the paper, which adds teachers and does not say who starts or ends them. Dask's adaptive
target does not work here: it counts tasks, and a teacher that answers requests has none
(measured: four busy ones scaled to zero within 8 s).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

# A teacher is free for a moment before the student that waits for it gets it (3.4). One that is
# free for longer was passed over by that student, and counts no more.
_LEASED_WITHIN_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolState:
    """State of the pool at a tick."""

    time: float  # seconds
    missing: float  # samples/s that students ask for and do not have
    t_t: float  # samples/s of a teacher, the mean; 0 when none is up
    alive: int  # teachers up or starting
    starting: int
    free: Mapping[str, float]  # t_t by name, of the teachers that no student holds


@dataclass(frozen=True, slots=True)
class Resize:
    start: int = 0  # teachers to start
    withdraw: tuple[str, ...] = ()  # names of the teachers to end


@dataclass(slots=True)
class PoolSize:
    least: int  # teachers
    most: int  # teachers
    idle_s: float = 10.0  # a teacher that is free for longer is not needed
    free_since: dict[str, float] = field(default_factory=dict)  # seconds, by teacher
    # Samples/s of a teacher, as last observed: an empty pool need not learn it again
    t_t: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.least <= self.most:
            raise ValueError(f"need 0 <= least <= most, got {self.least} and {self.most}")

    def on_tick(self, level: PoolState) -> Resize:
        self.free_since = {
            name: self.free_since.get(name, level.time) for name in level.free
        }
        self.t_t = level.t_t or self.t_t
        wanted = math.ceil(level.missing / self.t_t - 1e-9) if self.t_t else 0
        if level.missing > 0:
            wanted = max(1, wanted)
        coming = level.starting + sum(
            level.time - since < _LEASED_WITHIN_S for since in self.free_since.values()
        )
        lacking = max(wanted - coming, self.least - level.alive)
        start = max(0, min(lacking, self.most - level.alive))
        if start or level.missing > 0:  # none is withdrawn while a student searches
            return Resize(start=start)
        spare = level.alive - self.least
        idle = [
            name
            for name, since in self.free_since.items()
            if level.time - since >= self.idle_s
        ]
        slowest_first = sorted(idle, key=lambda name: (level.free[name], name))
        return Resize(withdraw=tuple(slowest_first[: max(0, spare)]))
