"""DART: diverse models at first, which are then repeatedly averaged and trained.

Jain et al., arXiv:2302.14685 (diversify, aggregate, repeat training): models train independently
for about half of the epochs, then their weights are averaged at intervals. In the paper each has
its own augmentations; here they differ by data, order and random numbers.
"""

from dataclasses import dataclass
from typing import Annotated

from kdlab.config import Range, register
from kdlab.config.spec import SHARE
from kdlab.train.aggregation.weights import (
    MergeInputs,
    MergeResult,
    WeightAggregation,
    mean_of,
)


@register("train/aggregation/dart")
@dataclass(frozen=True, kw_only=True)
class Dart(WeightAggregation):
    """Averages after an independent part.

    tau: local iterations between communications.
    optimizer: each worker keeps its momentum over an average, or starts without.
    apart: share of the iterations before the first average (the paper: half).
    """

    tau: Annotated[int, Range(ge=1)] = 500
    apart: Annotated[float, SHARE] = 0.5

    def is_apart(self, number: int, of: int) -> bool:
        """True while nothing is averaged after round `number` (from 0) of `of` rounds."""
        return number + 1 < self.apart * of

    def exchanged(self, number: int, of: int) -> float:
        return 0.0 if self.is_apart(number, of) else 1.0

    def merge(self, merging: MergeInputs) -> MergeResult:
        mean = mean_of(merging.states)
        if self.is_apart(merging.round, merging.rounds):
            weights = {name: tensor.clone() for name, tensor in merging.local.items()}
            return MergeResult(weights=weights, global_weights=mean)
        return MergeResult(weights=mean)
