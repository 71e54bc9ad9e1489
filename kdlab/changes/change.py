"""What somebody asks of a run that goes on: lines of `control.jsonl` in its folder.

Whoever watches appends them; nothing of the watching happens in the training process. The loop
hears those for its member (kdlab/changes/queue.py), the run's process those for teachers
(kdlab/experiment/teacher_changes.py).
"""

import errno
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from math import isfinite
from pathlib import Path
from typing import Annotated

from msgspec import Meta

from kdlab.codec import MessageError, Tagged, snake, to_builtins
from kdlab.events.log import LineReader, newline_if_torn

LR_FACTOR = "lr_factor"
CONTROL = "control.jsonl"
RankCount = Annotated[int, Meta(ge=1, le=4096)]


class Change(Tagged, tag_field="event", tag=snake, kw_only=True):
    """For one member of a run."""

    time: float  # seconds since 1970, when it was asked for
    member: str  # that trained then

    def __post_init__(self) -> None:
        if not isfinite(self.time):
            raise ValueError("its time is no number")


class Pause(Change):
    """Stand still, with all that is in memory."""


class GoOn(Change):
    """End a pause."""


class SaveCheckpoint(Change, tag="checkpoint"):
    """Save after this step."""


class SetValues(Change, tag="set"):
    """Learning rate, weights of the loss, thresholds: from the next step on."""

    set: Mapping[str, float]

    def __post_init__(self) -> None:
        super().__post_init__()
        if not all(isfinite(value) for value in self.set.values()):
            raise ValueError("a value is no number")
        if self.set.get(LR_FACTOR, 1.0) < 0:
            raise ValueError(f"{LR_FACTOR} is below 0")


class Back(SetValues, tag="back"):
    """Go on from this checkpoint, with the values that were others then."""

    step: Annotated[int, Meta(ge=0, le=2**53)]


class Scale(Change):
    """So many ranks for the student, whichever member trains."""

    ranks: RankCount


class AddTeacher(Change):
    """One teacher more."""


class DrainTeacher(Change):
    """This teacher answers what it owes, and leaves."""

    name: str


class KillTeacher(Change):
    """This teacher dies, as a test of what becomes of the run."""

    name: str


def append(folder: Path, change: Change) -> None:
    """Write it for the run of this folder, in one piece whoever else writes.

    Raises:
        OSError: the disk did not take it.
    """
    line = (json.dumps(to_builtins(change)) + "\n").encode()
    file = os.open(folder / CONTROL, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        line = newline_if_torn(file) + line
        if os.write(file, line) < len(line):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder / CONTROL))
    finally:
        os.close(file)


class ChangeReader:
    """Changes that were appended since the last call; a line that is none is left out."""

    def __init__(self, path: Path) -> None:
        self._lines = LineReader(path)

    def __call__(self) -> list[Change]:
        found = list[Change]()
        for line in self._lines():
            with suppress(MessageError):
                found.append(Change.from_builtins(line))
        return found
