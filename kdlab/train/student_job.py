"""What a student's training is told, and what its checkpoint says."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from kdlab.control.steering import Steering
from kdlab.data.samples import PlannedSamples
from kdlab.events.event import Emit
from kdlab.losses.soft_loss import LossSpec
from kdlab.models.model import ModelSpec, Normalised
from kdlab.train.aggregation.ranks import Ranks, Solo
from kdlab.train.checkpoint import OptimizerFacts
from kdlab.train.position import Standing
from kdlab.train.recipe import Recipe


@dataclass(frozen=True, slots=True, kw_only=True)
class StudentJob:
    """What to train, on what, and where to write."""

    recipe: Recipe
    model_spec: ModelSpec
    model: Normalised
    samples: PlannedSamples
    loss: LossSpec | None  # None: true labels only, whatever the source says
    seed: int
    folder: Path
    spec_hash: str
    emit: Emit
    stop: Callable[[], bool] = lambda: False
    ranks: Ranks = field(default_factory=Solo)
    members: tuple[str, ...] = ("alone",)  # names of the ranks, in their order
    fence: int = 0  # of this generation of ranks: what an earlier one saves is refused
    leave: Callable[[], bool] = lambda: False  # save and end this generation
    pulse: Callable[[int], None] = lambda step: None  # a sign of life
    steering: Steering = field(default_factory=lambda: Steering(None, ""))


@dataclass(frozen=True, kw_only=True)
class StudentFacts(Standing, OptimizerFacts):
    """A checkpoint's facts.

    Attributes:
        shares: of each rank in a batch, by its name.
        fence: of the generation of ranks that saved it.
        scaler: state of the gradient scaler; empty without one.
    """

    shares: dict[str, float]
    fence: int
    scaler: dict[str, int | float]
