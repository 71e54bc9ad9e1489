"""What trainer and reader say to each other beside ring, events and the paper's instructions."""

from kdlab.codec import Tagged
from kdlab.papers.edl_dist.reader_instructions import ReaderFailure


class ReaderOrder(Tagged):
    """To the reader."""


class SetThresholds(ReaderOrder):
    lt: int  # samples
    ut: int


class PauseReader(ReaderOrder):
    """The student stands still, or goes on."""

    paused: bool


class StopReader(ReaderOrder):
    """Give the teachers back and end."""


class ReaderDefect(ReaderFailure):
    why: str
