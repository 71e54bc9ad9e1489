"""Model soups: independent trainings whose weights are averaged once, at the end.

Wortsman et al., arXiv:2203.05482: uniform averages all; greedy (recipe 1) adds them in order of
their accuracy on validation, and keeps those that do not lower it. All have equal initial weights:
soups are for fine-tuning, where trainings end in one basin.
"""

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from kdlab.config import register
from kdlab.papers.ec_dnn.parallel import Combining
from kdlab.train.aggregation.kind import Weights
from kdlab.train.aggregation.weights import (
    MergeInputs,
    MergeResult,
    WeightAggregation,
    mean_of,
)


@register("train/aggregation/soup")
@dataclass(frozen=True, kw_only=True)
class Soup(WeightAggregation):
    """One average after all iterations.

    tau: has no effect: there is one communication.
    optimizer: has no effect: nothing is trained after it.
    recipe: uniform, or greedy by validation images.
    """

    recipe: Literal["uniform", "greedy"] = "greedy"

    @property
    def needs_validation(self) -> bool:
        return self.recipe == "greedy"

    @property
    def combining(self) -> Combining:
        """Greedy: each worker needs all models to choose."""
        return "all_models" if self.recipe == "greedy" else "model_average"

    def interval(self, iterations: int) -> int:
        return iterations

    def merge(self, merging: MergeInputs) -> MergeResult:
        if self.recipe == "uniform":
            return MergeResult(weights=mean_of(merging.states))
        errors = [merging.error(state) for state in merging.states]
        order = sorted(range(len(errors)), key=lambda k: (errors[k], k))
        taken: list[Weights] = [merging.states[order[0]]]
        soup: dict[str, Tensor] = dict(taken[0])
        best = errors[order[0]]
        for number in order[1:]:
            candidate = mean_of([*taken, merging.states[number]])
            error = merging.error(candidate)
            if error <= best:
                taken.append(merging.states[number])
                soup, best = candidate, error
        return MergeResult(weights=soup)
