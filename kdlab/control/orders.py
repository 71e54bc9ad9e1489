"""What somebody asks of a run that goes on: lines of `control.jsonl` in its folder.

Whoever watches appends them; nothing of the watching happens in the training process. The loop
reads those for its member (kdlab/control/steering.py), the run's process those for teachers
(kdlab/experiment/pool_orders.py).
"""

import json
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, fields
from math import isfinite
from pathlib import Path
from typing import Any, ClassVar

from kdlab.events.log import LineReader
from kdlab.messages import MessageError, typed

LR_FACTOR = "lr_factor"
CONTROL = "control.jsonl"
KINDS: dict[str, type["Order"]] = {}  # by name


@dataclass(frozen=True, kw_only=True)
class Order:
    """For one member of a run."""

    KIND: ClassVar[str] = ""

    time: float  # seconds since 1970, when it was given
    member: str  # that trained then

    def __post_init__(self) -> None:
        if not isfinite(self.time):
            raise ValueError("its time is no number")

    def __init_subclass__(cls, kind: str = "") -> None:
        super().__init_subclass__()
        if kind:
            cls.KIND = kind
            KINDS[kind] = cls

    def facts(self) -> dict[str, Any]:
        """The line that is written."""
        own = {f.name: getattr(self, f.name) for f in fields(self)}
        return {"time": self.time, "event": self.KIND, "member": self.member} | own


@dataclass(frozen=True, kw_only=True)
class Pause(Order, kind="pause"):
    """Stand still, with all that is in memory."""


@dataclass(frozen=True, kw_only=True)
class GoOn(Order, kind="go_on"):
    """End a pause."""


@dataclass(frozen=True, kw_only=True)
class SaveCheckpoint(Order, kind="checkpoint"):
    """Save after this step."""


@dataclass(frozen=True, kw_only=True)
class ChangeSettings(Order, kind="set"):
    """Learning rate, weights of the loss, thresholds: from the next step on."""

    set: Mapping[str, float]

    def __post_init__(self) -> None:
        super().__post_init__()
        if not all(isfinite(value) for value in self.set.values()):
            raise ValueError("a setting is no number")
        if self.set.get(LR_FACTOR, 1.0) < 0:
            raise ValueError(f"{LR_FACTOR} is below 0")


@dataclass(frozen=True, kw_only=True)
class AddTeacher(Order, kind="add_teacher"):
    """One teacher more."""


@dataclass(frozen=True, kw_only=True)
class DrainTeacher(Order, kind="drain_teacher"):
    """This teacher answers what it owes, and leaves."""

    name: str


@dataclass(frozen=True, kw_only=True)
class KillTeacher(Order, kind="kill_teacher"):
    """This teacher dies, as a test of what becomes of the run."""

    name: str


def order(kind: str, member: str, data: Mapping[str, Any]) -> Order:
    """The order of this name, given now; KeyError or TypeError where there is no such one."""
    return KINDS[kind](time=time.time(), member=member, **data)


def append(folder: Path, given: Order) -> None:
    """Write it for the run of this folder, in one piece whoever else writes."""
    line = (json.dumps(given.facts()) + "\n").encode()
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
        return [found for line in self._lines() if (found := _parsed(line))]


def _parsed(line: Mapping[str, Any]) -> Order | None:
    kind = KINDS.get(str(line.get("event")))
    if kind is None:
        return None
    with suppress(MessageError):
        return typed(kind, line)
    return None
