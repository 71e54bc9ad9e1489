"""What trainer and reader say to each other beside the ring: events, and these."""

from dataclasses import dataclass

from kdlab.messages import Kinds

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
class TeachersMissing:
    """None is left, and none came in time."""

    unplaced: int  # samples that were sent and not answered
    batches: int  # delivered so far
    why: str


@dataclass(frozen=True, slots=True)
class ReaderDefect:
    why: str


ReaderFailure = TeachersMissing | ReaderDefect
READER_FAILURES: Kinds[ReaderFailure] = Kinds(TeachersMissing, ReaderDefect)
