"""What the DistilReader (distil_reader.py) tells whoever carries it out."""

from dataclasses import dataclass

from kdlab.events.event import Event
from kdlab.papers.edl_dist.in_flight import Part


@dataclass(frozen=True, slots=True)
class Send:
    part: Part
    teacher: str
    lease: int


@dataclass(frozen=True, slots=True)
class Keep:
    """The answer just given counts: store its soft labels in their batch."""

    part: Part


@dataclass(frozen=True, slots=True)
class Check:
    """Ask this teacher for the same part, and compare with the answers kept for it.

    Those are the one just given (`first`: keep it for this purpose) and what was asked for
    in earlier checks of the part; `on_compared` hears which of them it equals.
    """

    part: Part
    teacher: str
    lease: int
    first: tuple[str, int] | None  # (address, lease) of the answer just given


@dataclass(frozen=True, slots=True)
class EndCheck:
    """The answers kept for this part are not needed any more."""

    part: Part


@dataclass(frozen=True, slots=True)
class TakeCached:
    """The soft labels of this whole batch are in the cache: store them."""

    part: Part


@dataclass(frozen=True, slots=True)
class Deliver:
    """Hand this batch, now complete, to the trainer."""

    epoch: int
    batch: int


@dataclass(frozen=True, slots=True)
class AskTeacher:
    """Algorithm 1, line 8: one more at least, and as many as `need` takes."""

    need: float = 0.0  # samples/s


@dataclass(frozen=True, slots=True)
class Need:
    """What its teachers must cover is less than it said; it keeps what nobody else needs."""

    need: float  # samples/s


@dataclass(frozen=True, slots=True)
class Release:
    """The others do: `need` is what they must cover from now on."""

    teacher: str
    lease: int
    need: float  # samples/s


@dataclass(frozen=True, slots=True)
class GiveBack:
    """After the back-off, the coordinator may assign it again, to anybody."""

    teacher: str
    lease: int
    after_s: float


@dataclass(frozen=True, slots=True)
class Complain:
    """Its answers cannot be used; it must not be handed out again."""

    teacher: str
    lease: int
    why: str


@dataclass(frozen=True, slots=True)
class Say:
    event: Event


@dataclass(frozen=True, slots=True)
class Fail:
    """No teacher came within `wait_s`."""

    unplaced: int  # samples that were sent and not answered
    batches: int  # delivered so far
    why: str


ToCoordinator = AskTeacher | Need | Release | GiveBack | Complain
Instruction = (
    Send | Keep | Check | EndCheck | TakeCached | Deliver | Say | Fail | ToCoordinator
)
Instructions = list[Instruction]
