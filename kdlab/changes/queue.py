"""Queue of a user's changes to a running training: pause, loss weights, learning rate.

The loop polls it between steps, a few times a second. All ranks of a student act after the same
step, on the values of rank 0.
"""

import math
import time
from pathlib import Path
from typing import Self

from kdlab.changes.change import (
    Back,
    ChangeReader,
    GoOn,
    Pause,
    SaveCheckpoint,
    Scale,
    SetValues,
)

_SOURCE = "soft_labels."
_EVERY_S = 0.1


class ChangeQueue:
    """Changes for one member of a run; without a path there are none.

    Requests to pause, save or go back that are older than `since` belong to an earlier session and
    are ignored; values and ranks remain in force.
    """

    def __init__(
        self, path: Path | None = None, member: str = "", since: float = 0.0
    ) -> None:
        self._read = None if path is None else ChangeReader(path)
        self.member, self._since = member, since
        self.paused = self.wants_checkpoint = False
        self.values: dict[str, float] = {}  # newest ones that were set
        self.ranks: int | None = None  # newest number requested, for all members
        self.back: Back | None = None  # newest request
        self._polled_at = -math.inf

    def poll(self, *, now: bool = False) -> Self:
        """Read new changes, unless the last poll was within 0.1 s and not `now`."""
        clock = time.monotonic()
        if self._read is None or not (now or clock - self._polled_at >= _EVERY_S):
            return self
        first, self._polled_at = self._polled_at == -math.inf, clock
        for change in self._read():
            match change:
                case Scale(ranks=ranks):
                    self.ranks = ranks
                case _ if change.member != self.member:
                    pass
                case Back() if change.time > self._since:
                    self.back = change
                    if first:  # a loop that is training takes the values after going back
                        self.values |= change.set
                case SetValues(set=values):
                    self.values |= values
                case _ if change.time < self._since:
                    pass
                case Pause() | GoOn():
                    self.paused = isinstance(change, Pause)
                case SaveCheckpoint():
                    self.wants_checkpoint = True
        return self

    def take_checkpoint(self) -> bool:
        """Return whether a checkpoint was requested since the last call."""
        is_requested, self.wants_checkpoint = self.wants_checkpoint, False
        return is_requested

    def thresholds(self) -> dict[str, float]:
        """Return the lt and ut of the served source that were set."""
        names = [name for name in ("lt", "ut") if _SOURCE + name in self.values]
        return {name: self.values[_SOURCE + name] for name in names}

    def refuse_thresholds(self) -> None:
        """Discard thresholds that the source refused."""
        for name in self.thresholds():
            del self.values[_SOURCE + name]
