"""Asynchronous EASGD: each worker exchanges with the centre on its own clock.

Zhang, Choromanska, LeCun, arXiv:1412.6651, Algorithm 1: after every tau of its own steps a worker
and the centre move towards each other, and no worker waits for another.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from kdlab.config import Range, register
from kdlab.papers.ec_dnn.parallel import Combining
from kdlab.train.aggregation.kind import Weights
from kdlab.train.aggregation.weights import MergeInputs, MergeResult, WeightAggregation


@register("train/aggregation/easgd_async")
@dataclass(frozen=True, kw_only=True)
class EasgdAsync(WeightAggregation):
    """Elastic averaging without waiting; the global model is the centre.

    tau: iterations of a worker between its exchanges with the centre.
    optimizer: each worker keeps its momentum over an exchange, or starts without.
    alpha: share of the way to each other that a worker and the centre move in an exchange (the
        paper: 0.9 / workers). Statistics and counters are those of the last worker to exchange.
    """

    alpha: Annotated[float, Range(gt=0, le=1)] = 0.225

    remembers: ClassVar[str] = "centre"

    @property
    def combining(self) -> Combining:
        return "centre"

    def travelling(
        self, number: int, state: Weights, parameters: frozenset[str]
    ) -> frozenset[str]:
        return parameters  # the centre has no statistics of its own

    def merge(self, merging: MergeInputs) -> MergeResult:
        weights, centres = dict(merging.local), dict(merging.local)
        for name in merging.parameters:
            centre = merging.memory[f"centre.{name}"]
            way = self.alpha * (weights[name] - centre)
            weights[name], centres[name] = weights[name] - way, centre + way
        memory = {f"centre.{name}": centres[name] for name in sorted(merging.parameters)}
        return MergeResult(weights=weights, memory=memory, global_weights=centres)
