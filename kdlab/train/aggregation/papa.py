"""PAPA: a population whose weights are repeatedly pulled a little towards their mean.

Jolicoeur-Martineau et al., arXiv:2304.03094, section 3.1 (PAPA-gradual): every few iterations each
worker's weights move a share of the way to the mean of all. The mean of the population, its soup,
is the global model.
"""

from dataclasses import dataclass
from typing import Annotated

from kdlab.config import Range, register
from kdlab.train.aggregation.weights import (
    MergeInputs,
    MergeResult,
    WeightAggregation,
    mean_of,
)


@register("train/aggregation/papa")
@dataclass(frozen=True, kw_only=True)
class Papa(WeightAggregation):
    """Workers whose weights differ but stay near each other.

    tau: local iterations between communications (the paper: 10).
    optimizer: each worker keeps its momentum over a communication (the paper), or starts without.
    keep: share of its own weights that a worker keeps in a communication (the paper: 0.99).
    """

    tau: Annotated[int, Range(ge=1)] = 10
    keep: Annotated[float, Range(gt=0, lt=1)] = 0.99

    def merge(self, merging: MergeInputs) -> MergeResult:
        mean, local = mean_of(merging.states), merging.local
        weights = {
            name: self.keep * local[name] + (1 - self.keep) * tensor
            if tensor.is_floating_point()
            else local[name].clone()
            for name, tensor in mean.items()
        }
        return MergeResult(weights=weights, global_weights=mean)
