"""What the process of a worker for trials is started with, told, and answers."""

from collections.abc import Mapping
from dataclasses import dataclass

from kdlab.messages import Kinds
from kdlab.soft_labels.source import PoolAddress


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialWorkerConfig:
    """Simulations need no torch; `gpu` is the only one that it sees, and None is all."""

    simulates: bool
    gpu: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialOrder:
    """One trial: a run folder and the pool that teaches it, or the spec of a simulation."""

    number: int
    run: str | None = None
    simulation: Mapping[str, object] | None = None
    pool: PoolAddress | None = None


@dataclass(frozen=True, slots=True)
class StopTrial:
    """Save and end."""

    number: int


TRIAL_ORDERS: Kinds[TrialOrder | StopTrial] = Kinds(TrialOrder, StopTrial)


@dataclass(frozen=True, slots=True)
class TrialEnded:
    """An order was carried out, one way or another."""

    order: int  # number of the trial
    state: str  # finished, stopped, failed, or no_room: its disk is full
    error: str | None = None
    result: Mapping[str, object] | None = None
