"""What trainer, reader and coordinator say to each other beside ring and events."""

from dataclasses import dataclass

from kdlab.messages import Kinds
from kdlab.papers.edl_dist.reader_instructions import (
    AskTeacher,
    Complain,
    Fail,
    GiveBack,
    Need,
    Release,
    ToCoordinator,
)

# What the coordinator is told of a student's teachers
TO_COORDINATOR: Kinds[ToCoordinator] = Kinds(AskTeacher, Need, Release, GiveBack, Complain)

# What the reader is told


@dataclass(frozen=True, slots=True)
class SetThresholds:
    lt: int  # samples
    ut: int


@dataclass(frozen=True, slots=True)
class PauseReader:
    """The student stands still, or goes on."""

    paused: bool


@dataclass(frozen=True, slots=True)
class StopReader:
    """Give the teachers back and end."""


ReaderOrder = SetThresholds | PauseReader | StopReader
READER_ORDERS: Kinds[ReaderOrder] = Kinds(SetThresholds, PauseReader, StopReader)


# Why it cannot go on


@dataclass(frozen=True, slots=True)
class ReaderDefect:
    why: str


ReaderFailure = Fail | ReaderDefect
READER_FAILURES: Kinds[ReaderFailure] = Kinds(Fail, ReaderDefect)
