"""Job of a student's training, and the facts of its checkpoints."""

from dataclasses import dataclass, field

from torch import nn

from kdlab.losses.soft_loss import LossSpec
from kdlab.models.model import ModelSpec, Normalised
from kdlab.train.aggregation.ranks import Ranks
from kdlab.train.checkpoint import OptimizerFacts
from kdlab.train.feature_teaching import FeatureJob
from kdlab.train.job import LoopJob
from kdlab.train.position import LoopFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class StudentJob(LoopJob):
    """Training of a whole network on one or several ranks."""

    model_spec: ModelSpec
    model: Normalised
    loss: LossSpec | None  # None: true labels only
    ranks: Ranks = field(default_factory=Ranks)
    head: nn.Linear | None = None  # from hidden states of the source to logits
    features: FeatureJob | None = None  # compared inner outputs
    members: tuple[str, ...] = ("alone",)  # names of the ranks, in their order

    @property
    def outputs(self) -> int | None:
        """Numbers per sample from the source; None: the number of classes."""
        if self.features is not None:
            return self.features.outputs
        return None if self.head is None else self.head.in_features


@dataclass(frozen=True, kw_only=True)
class StudentFacts(LoopFacts, OptimizerFacts):
    """Facts of a student's checkpoint."""

    shares: dict[str, float]  # of each rank in a batch, by its name
    fence: int  # of the generation of ranks that saved it
