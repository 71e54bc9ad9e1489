"""DiLoCo: an outer optimizer takes the change of the workers' weights as a gradient.

Douillard et al., arXiv:2311.08105, Algorithm 1: after H local steps the outer gradient is the
mean of (global weights - a worker's weights), and Nesterov's momentum moves the global weights.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from torch import Tensor

from kdlab.config import Range, register
from kdlab.config.spec import POSITIVE
from kdlab.train.aggregation.weights import (
    MergeInputs,
    MergeResult,
    WeightAggregation,
    mean_of,
)


@register("train/aggregation/diloco")
@dataclass(frozen=True, kw_only=True)
class DiLoCo(WeightAggregation):
    """Averages through an outer optimizer: SGD with Nesterov's momentum.

    tau: local iterations between communications; hundreds.
    optimizer: each worker keeps its momentum over a communication (the paper), or starts without.
    outer_lr: of the outer optimizer; 1 without momentum is a plain average.
    outer_momentum: of the outer optimizer.
    """

    tau: Annotated[int, Range(ge=1)] = 500
    outer_lr: Annotated[float, POSITIVE] = 0.7
    outer_momentum: Annotated[float, Range(ge=0, lt=1)] = 0.9

    remembers: ClassVar[str] = "global"

    def merge(self, merging: MergeInputs) -> MergeResult:
        weights, memory = mean_of(merging.states), dict(merging.memory)
        self.step(merging.parameters, weights, memory)
        return MergeResult(weights=weights, memory=memory)

    def step(
        self, names: frozenset[str], weights: dict[str, Tensor], memory: dict[str, Tensor]
    ) -> None:
        """Take the outer step for `names`, from their means in `weights`; modify both dicts."""
        for name in sorted(names):
            before = memory[f"global.{name}"]
            gradient = before - weights[name]
            momentum = memory.get(f"momentum.{name}")
            momentum = (
                gradient if momentum is None else self.outer_momentum * momentum + gradient
            )
            after = before - self.outer_lr * (gradient + self.outer_momentum * momentum)
            weights[name] = memory[f"global.{name}"] = after
            memory[f"momentum.{name}"] = momentum
