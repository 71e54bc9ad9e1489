"""The instructions of the DistilReader (distil_reader.py), for the loop that executes them."""

from kdlab.codec import Tagged
from kdlab.events.event import Event
from kdlab.papers.edl_dist.in_flight import Part


class ReaderInstruction(Tagged):
    """Base of all instructions."""


class ToCoordinator(ReaderInstruction):
    """Base of the messages about a student's teachers (3.1: reader to coordinator)."""


class Send(ReaderInstruction):  # 3.1: "sends the input data to Teacher"
    """Ask a teacher for the soft labels of a part."""

    part: Part
    teacher: str  # address
    lease: int  # its epoch: an answer under another one does not count


class Keep(ReaderInstruction):
    """Store the soft labels of the latest answer in their batch: this answer counts."""

    part: Part


class Check(ReaderInstruction):
    """Ask this teacher for the same part, and compare with the stored answers to it.

    Stored are the latest answer (`first`: keep it for the comparison) and those of earlier checks
    of the part. `on_compared` gets the teachers whose answers the new one equals.
    """

    part: Part
    teacher: str
    lease: int
    first: tuple[str, int] | None  # (address, lease) of the latest answer


class EndCheck(ReaderInstruction):
    """Drop the answers that are stored to check this part."""

    part: Part


class TakeCached(ReaderInstruction):
    """Take the soft labels of a full batch from the cache and store them in it."""

    part: Part


class Deliver(ReaderInstruction):  # Algorithm 2, lines 3 and 4
    """Hand a complete batch to the trainer."""

    epoch: int
    batch: int


class AskTeacher(ToCoordinator):
    """Ask for one teacher more (Algorithm 1, line 8), or for as many as cover `need`."""

    need: float = 0.0  # samples/s


class Need(ToCoordinator):
    """Report a need below the last one; the student keeps teachers that no other needs."""

    need: float  # samples/s


class Release(ToCoordinator):  # beyond the paper, which only adds teachers
    """Release a teacher; the others must cover `need` from now on."""

    teacher: str
    lease: int
    need: float  # samples/s


class ReturnTeacher(ToCoordinator):
    """Return a teacher after a back-off; the coordinator may assign it to any student."""

    teacher: str
    lease: int
    after_s: float  # the back-off; beyond the paper (patience.py)


class ReportBadTeacher(ToCoordinator):
    """Report a teacher with unusable answers; it must not be assigned again."""

    teacher: str
    lease: int
    why: str  # for people


class EmitEvent(ReaderInstruction):
    """Write an event to the run's log."""

    event: Event


class ReaderFailure(ReaderInstruction):
    """Base of the reasons why the reader cannot continue."""


class Fail(ReaderFailure):
    """End the run: no teacher came within `wait_s`."""

    unplaced: int  # samples that were sent and not answered
    batches: int  # delivered so far
    why: str  # the last failure of a request, for people


Instructions = list[ReaderInstruction]
