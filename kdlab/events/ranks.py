"""Events of a group of ranks that train one student together."""

from collections.abc import Mapping

from msgspec import field

from kdlab.events.event import Event


class GenerationStarted(Event):
    """All ranks start from the newest checkpoint (EDL-Dist, section 3.4)."""

    number: int
    # pids by name; in logs of runs that torchrun started, their number
    ranks: Mapping[str, int] | int

    def pids(self) -> dict[str, int]:
        """Process ids by the names of the processes, in the order of the ranks."""
        return {} if isinstance(self.ranks, int) else dict(self.ranks)

    def text(self) -> str:
        count = self.ranks if isinstance(self.ranks, int) else len(self.ranks)
        return f"generation {self.number}: {count} ranks start"


class RankLost(Event, line="{rank} is lost: {why}"):
    """A rank's process ended, or its group broke."""

    rank: str = field()  # the process
    exit_code: int | None
    was_rank: bool  # else a standby
    why: str


class RankGaveUp(Event, line="{rank} waits for a new generation: {why}"):
    """A rank noticed that its group is broken, and waits for the next generation."""

    rank: str = field()
    why: str


class RankHangs(Event, line="{rank} sent no heartbeat for {silent_s:.0f} s; it is killed"):
    """A rank sent no heartbeat and is killed."""

    rank: str = field()
    silent_s: float


class RankKilled(Event, line="{rank} is killed: {why}"):
    """A rank is killed so that the others can continue."""

    rank: str = field()
    why: str


class GroupRecovered(Event, line="all ranks train again {seconds:.1f} s after the loss"):
    """All ranks finished a step of the generation after a loss."""

    seconds: float  # since the loss
    generation: int


class BatchShared(Event, line="rows of a batch on each rank: {rows} ({shares} shares)"):
    """The rows of a batch for each rank."""

    rows: list[int]  # of each rank
    shares: str  # equal or measured
