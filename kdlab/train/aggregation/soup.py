"""Model soups: independent trainings whose weights are averaged once, in the end.

Wortsman et al., arXiv:2203.05482: uniform takes all; greedy (recipe 1) goes through them from the
best on validation on, and keeps those that do not make it worse. They begin with the same weights:
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
    """Averages once, after all iterations.

    tau: has no effect: there is one communication.
    optimizer: nothing is trained behind it.
    recipe: uniform, or greedy by validation images.
    """

    recipe: Literal["uniform", "greedy"] = "greedy"

    @property
    def needs_validation(self) -> bool:
        return self.recipe == "greedy"

    @property
    def combining(self) -> Combining:
        """Each worker must have all of them to choose."""
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
            tried = mean_of([*taken, merging.states[number]])
            error = merging.error(tried)
            if error <= best:
                taken.append(merging.states[number])
                soup, best = tried, error
        return MergeResult(weights=soup)
