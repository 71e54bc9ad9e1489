"""What the process of a rank, or of a local model, is told, and what it answers."""

from dataclasses import dataclass, field
from typing import Any

from kdlab.codec import Tagged
from kdlab.soft_labels.source import PoolAddress


@dataclass(frozen=True, slots=True, kw_only=True)
class RankConfig:
    """What it is started with."""

    run: str  # path of the run's folder
    member: str  # of the run
    name: str  # of the process; its log is called by it
    pulse: str = ""  # where its signs of life go; whoever starts it fills it in


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationOrder:
    """One generation of ranks, as each of them gets it."""

    generation: int  # its number
    world: int  # how many ranks
    meet_at: str  # where they find each other, as `torch.distributed` takes it
    secret: str = field(repr=False)  # by which they know each other there
    fence: int = 0  # checkpoints of an earlier one are not written any more
    from_step: int = 0  # of the checkpoint it begins with
    pool: PoolAddress | None = None  # that teaches them
    # rank and names: of this process, and of all in the order of ranks; empty where
    # somebody else than kdlab has started them
    rank: int = 0
    names: tuple[str, ...] = ()
    # local_rank and local_world: among the ranks of this machine, and the most on any one
    local_rank: int = 0
    local_world: int = 1


class RankOrder(Tagged):
    """To the process of a rank."""


class CarryOut(RankOrder):
    """Carry this out: a `GenerationOrder`, or what a method has in its place."""

    order: dict[str, Any]


class SaveGeneration(RankOrder):
    """End the generation under way after a common step, all saved."""


class StopTraining(RankOrder):
    """The user asked to stop: save, and say so."""


class RankAnswer(Tagged):
    """Its answer."""


class RankDone(RankAnswer):
    """What it was told is done."""

    result: dict[str, Any] | None  # of the master, or of a local model


class RankSaved(RankAnswer):
    """The generation has ended, its state is on disk."""

    leaving: bool  # the process ends, as it was asked to from outside


class RankStopped(RankAnswer):
    """It has stopped because the user asked."""

    why: str


class RankFailed(RankAnswer):
    """An error that another process would have as well."""

    error: str
    exit_code: int = 1


class GroupBroken(RankAnswer):
    """Another rank is gone; this one is ready for the next generation."""

    why: str


class MachineFailed(RankAnswer):
    """Its last word: a fault of this machine, so that another may do better."""

    why: str
