"""Orders to the process of a rank or local model, and its answers."""

from dataclasses import dataclass, field
from typing import Any

from kdlab.codec import Tagged
from kdlab.soft_labels.source import PoolAddress


@dataclass(frozen=True, slots=True, kw_only=True)
class RankConfig:
    """Configuration of the process of a rank or local model."""

    run: str  # path of the run's folder
    member: str  # of the run
    name: str  # of the process and its log
    pulse: str = ""  # path of its heartbeat file; filled in by the parent


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationOrder:
    """One generation of ranks, as an order to one of them."""

    generation: int  # its number
    world: int  # how many ranks
    meet_at: str  # init method of `torch.distributed`
    secret: str = field(repr=False)  # that proves who belongs to the generation
    fence: int = 0  # no process with a lower one writes checkpoints any longer
    from_step: int = 0  # of the checkpoint that it starts from
    pool: PoolAddress | None = None  # their teachers; None without a pool
    # rank of this process, and names of all processes by rank; empty where another
    # launcher than kdlab started them
    rank: int = 0
    names: tuple[str, ...] = ()
    # among the ranks of this machine, and the most ranks on any one machine
    local_rank: int = 0
    local_world: int = 1


class RankOrder(Tagged):
    """An order to the process of a rank."""


class CarryOut(RankOrder):
    """Carry out a `GenerationOrder`, or what a method has in its place."""

    order: dict[str, Any]


class SaveGeneration(RankOrder):
    """End the generation after a common step, with all state saved."""


class StopTraining(RankOrder):
    """The user asked to stop: save and answer `RankStopped`."""


class RankAnswer(Tagged):
    """An answer of the process of a rank."""


class RankDone(RankAnswer):
    """The order is carried out."""

    result: dict[str, Any] | None  # of the master, or of a local model


class RankSaved(RankAnswer):
    """The generation has ended and its state is on disk."""

    leaving: bool  # the process ends, because it was asked to from outside


class RankStopped(RankAnswer):
    """The rank stopped because the user asked."""

    why: str


class RankFailed(RankAnswer):
    """An error that any process would have."""

    error: str
    exit_code: int = 1


class GroupBroken(RankAnswer):
    """Another rank was lost; this one is ready for the next generation."""

    why: str


class MachineFailed(RankAnswer):
    """Last message: a fault of this machine; a process on another one may succeed."""

    why: str
