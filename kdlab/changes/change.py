"""What somebody asks of a run that goes on: lines of `control.jsonl` in its folder.

Whoever watches appends them; nothing of the watching happens in the training process. The loop
reads those for its member (kdlab/changes/queue.py), the run's process those for teachers
(kdlab/experiment/pool_changes.py).
"""

import json
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from math import isfinite
from pathlib import Path
from typing import Any

from kdlab.codec import MessageError, Tagged, plain, snake
from kdlab.events.log import LineReader

LR_FACTOR = "lr_factor"
CONTROL = "control.jsonl"


class Order(Tagged, tag_field="event", tag=snake, kw_only=True):
    """For one member of a run."""

    time: float  # seconds since 1970, when it was given
    member: str  # that trained then

    def __post_init__(self) -> None:
        if not isfinite(self.time):
            raise ValueError("its time is no number")


class Pause(Order):
    """Stand still, with all that is in memory."""


class GoOn(Order):
    """End a pause."""


class SaveCheckpoint(Order, tag="checkpoint"):
    """Save after this step."""


class ChangeSettings(Order, tag="set"):
    """Learning rate, weights of the loss, thresholds: from the next step on."""

    set: Mapping[str, float]

    def __post_init__(self) -> None:
        super().__post_init__()
        if not all(isfinite(value) for value in self.set.values()):
            raise ValueError("a setting is no number")
        if self.set.get(LR_FACTOR, 1.0) < 0:
            raise ValueError(f"{LR_FACTOR} is below 0")


class AddTeacher(Order):
    """One teacher more."""


class DrainTeacher(Order):
    """This teacher answers what it owes, and leaves."""

    name: str


class KillTeacher(Order):
    """This teacher dies, as a test of what becomes of the run."""

    name: str


def order(kind: str, member: str, data: Mapping[str, Any]) -> Order:
    """The order of this name, given now; KeyError or TypeError where there is no such one."""
    made: Order = Order.KINDS[kind](time=time.time(), member=member, **data)
    return made


def append(folder: Path, given: Order) -> None:
    """Write it for the run of this folder, in one piece whoever else writes."""
    line = (json.dumps(plain(given)) + "\n").encode()
    file = os.open(folder / CONTROL, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(file, line)
    finally:
        os.close(file)


class OrderReader:
    """Orders that were appended since the last call; a line that is none is left out."""

    def __init__(self, path: Path) -> None:
        self._lines = LineReader(path)

    def __call__(self) -> list[Order]:
        found = list[Order]()
        for line in self._lines():
            with suppress(MessageError):
                found.append(Order.typed(line))
        return found
