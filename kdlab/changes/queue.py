"""What somebody changes about a training while it goes on: pause, weights, learning rate.

The loop looks for changes between steps, a few times a second. All ranks of a student act after
the same step: rank 0 says what holds from there on.
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
    """The changes for one member of a run; without a path there are none.

    Those to pause, save or go back that are older than `since` belong to an earlier session;
    values and ranks still hold.
    """

    def __init__(
        self, path: Path | None = None, member: str = "", since: float = 0.0
    ) -> None:
        self._read = None if path is None else ChangeReader(path)
        self.member, self._since = member, since
        self.paused = self.wants_checkpoint = False
        self.values: dict[str, float] = {}  # as they were set last
        self.ranks: int | None = None  # of all members, as it was asked for last
        self.back: Back | None = None  # to a checkpoint, as it was asked for last
        self._looked = -math.inf

    def look(self, *, now: bool = False) -> Self:
        """Read what is new, if the last look is a moment ago."""
        clock = time.monotonic()
        if self._read is None or not (now or clock - self._looked >= _EVERY_S):
            return self
        first, self._looked = self._looked == -math.inf, clock
        for change in self._read():
            match change:
                case Scale(ranks=ranks):
                    self.ranks = ranks
                case _ if change.member != self.member:
                    pass
                case Back() if change.time > self._since:
                    self.back = change
                    if first:  # who trains already does not go by it, but there
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
        """Whether somebody asked for one since the last call."""
        asked, self.wants_checkpoint = self.wants_checkpoint, False
        return asked

    def thresholds(self) -> dict[str, float]:
        """The served source's lt and ut, where they were set."""
        names = [name for name in ("lt", "ut") if _SOURCE + name in self.values]
        return {name: self.values[_SOURCE + name] for name in names}

    def refuse_thresholds(self) -> None:
        """The source cannot take these."""
        for name in self.thresholds():
            del self.values[_SOURCE + name]
