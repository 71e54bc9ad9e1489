"""DART: diverse at first, then averaged and trained on, again and again.

Jain et al., arXiv:2302.14685 (diversify, aggregate, repeat training): models train apart for about
half of the epochs, then their weights are averaged every so often. The paper has each train on
augmentations of its own; here they differ by their data, their order and their chances.
"""

from dataclasses import dataclass
from typing import Annotated

from kdlab.config import Range, register
from kdlab.config.spec import SHARE
from kdlab.train.aggregation.weights import Merged, Merging, WeightAggregation, mean_of


@register("train/aggregation/dart")
@dataclass(frozen=True, kw_only=True)
class Dart(WeightAggregation):
    """Averages from some time on.

    tau: local iterations between communications.
    optimizer: each worker keeps its momentum over an average, or starts without.
    apart: share of the iterations before the first average (the paper: half).
    """

    tau: Annotated[int, Range(ge=1)] = 500
    apart: Annotated[float, SHARE] = 0.5

    def build(self) -> "Dart":
        return self

    def merge(self, merging: Merging) -> Merged:
        mean = mean_of(merging.states)
        if merging.round + 1 <= self.apart * merging.rounds:
            own = {name: tensor.clone() for name, tensor in merging.own.items()}
            return Merged(weights=own, whole=mean)
        return Merged(weights=mean)
