"""Changes that a user requests of a running training: lines of `control.jsonl` in its folder.

Clients append them, and nothing of a client runs in the training process. The loop reads those for
its member (kdlab/changes/queue.py), the run's process those for teachers
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
    """Change for one member of a run."""

    time: float  # of the request, in seconds since 1970
    member: str  # that was training then

    def __post_init__(self) -> None:
        if not isfinite(self.time):
            raise ValueError("its time is not finite")


class Pause(Change):
    """Pause, and keep all state in memory."""


class GoOn(Change):
    """End a pause."""


class SaveCheckpoint(Change, tag="checkpoint"):
    """Save a checkpoint after this step."""


class SetValues(Change, tag="set"):
    """Set learning rate, loss weights or thresholds from the next step on."""

    set: Mapping[str, float]

    def __post_init__(self) -> None:
        super().__post_init__()
        if not all(isfinite(value) for value in self.set.values()):
            raise ValueError("a value is not finite")
        if self.set.get(LR_FACTOR, 1.0) < 0:
            raise ValueError(f"{LR_FACTOR} is below 0")


class Back(SetValues, tag="back"):
    """Continue from an earlier checkpoint, with the values of that time."""

    step: Annotated[int, Meta(ge=0, le=2**53)]


class Scale(Change):
    """Set the number of ranks of the student, whichever member trains."""

    ranks: RankCount


class AddTeacher(Change):
    """Add one teacher."""


class DrainTeacher(Change):
    """Have a teacher answer its open requests, then leave."""

    name: str


class KillTeacher(Change):
    """Kill a teacher, to test what the run does."""

    name: str


def append(folder: Path, change: Change) -> None:
    """Append a change for the run of this folder, atomically beside other writers.

    Raises:
        OSError: it could not be written.
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
    """Reader of the changes since the last call; invalid lines are skipped."""

    def __init__(self, path: Path) -> None:
        self._lines = LineReader(path)

    def __call__(self) -> list[Change]:
        changes = list[Change]()
        for line in self._lines():
            with suppress(MessageError):
                changes.append(Change.from_builtins(line))
        return changes
