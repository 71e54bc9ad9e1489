"""What a student's training is told, and what its checkpoint says."""

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
    """The whole network, and the other ranks that train it."""

    model_spec: ModelSpec
    model: Normalised
    loss: LossSpec | None  # None: true labels only, whatever the source says
    ranks: Ranks = field(default_factory=Ranks)
    head: nn.Linear | None = None  # makes logits of the hidden states that the source gives
    features: FeatureJob | None = None  # inner outputs that are compared too
    members: tuple[str, ...] = ("alone",)  # names of the ranks, in their order

    @property
    def outputs(self) -> int | None:
        """Numbers that the source gives of each sample; None: as many as classes."""
        if self.features is not None:
            return self.features.outputs
        return None if self.head is None else self.head.in_features


@dataclass(frozen=True, kw_only=True)
class StudentFacts(LoopFacts, OptimizerFacts):
    """A checkpoint's facts."""

    shares: dict[str, float]  # of each rank in a batch, by its name
    fence: int  # of the generation of ranks that saved it
