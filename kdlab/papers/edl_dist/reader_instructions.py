"""What the DistilReader (distil_reader.py) tells whoever carries it out."""

from kdlab.codec import Tagged
from kdlab.events.event import Event
from kdlab.papers.edl_dist.in_flight import Part


class ReaderInstruction(Tagged):
    """What is to be done."""


class ToCoordinator(ReaderInstruction):
    """What the coordinator is told of a student's teachers."""


class Send(ReaderInstruction):
    part: Part
    teacher: str
    lease: int


class Keep(ReaderInstruction):
    """The answer just given counts: store its soft labels in their batch."""

    part: Part


class Check(ReaderInstruction):
    """Ask this teacher for the same part, and compare with the answers kept for it.

    Those are the one just given (`first`: keep it for this purpose) and what was asked for
    in earlier checks of the part; `on_compared` hears which of them it equals.
    """

    part: Part
    teacher: str
    lease: int
    first: tuple[str, int] | None  # (address, lease) of the answer just given


class EndCheck(ReaderInstruction):
    """The answers kept for this part are not needed any more."""

    part: Part


class TakeCached(ReaderInstruction):
    """The soft labels of this whole batch are in the cache: store them."""

    part: Part


class Deliver(ReaderInstruction):
    """Hand this batch, now complete, to the trainer."""

    epoch: int
    batch: int


class AskTeacher(ToCoordinator):
    """Algorithm 1, line 8: one more at least, and as many as `need` takes."""

    need: float = 0.0  # samples/s


class Need(ToCoordinator):
    """What its teachers must cover is less than it said; it keeps what nobody else needs."""

    need: float  # samples/s


class Release(ToCoordinator):
    """The others do: `need` is what they must cover from now on."""

    teacher: str
    lease: int
    need: float  # samples/s


class ReturnTeacher(ToCoordinator):
    """After the back-off, the coordinator may assign it again, to anybody."""

    teacher: str
    lease: int
    after_s: float


class ReportBadTeacher(ToCoordinator):
    """Its answers cannot be used; it must not be handed out again."""

    teacher: str
    lease: int
    why: str


class EmitEvent(ReaderInstruction):
    event: Event


class ReaderFailure(ReaderInstruction):
    """Why the reader cannot go on."""


class Fail(ReaderFailure):
    """No teacher came within `wait_s`."""

    unplaced: int  # samples that were sent and not answered
    batches: int  # delivered so far
    why: str


Instructions = list[ReaderInstruction]
