"""EASGD: an elastic force ties the workers to a centre that follows them.

Zhang, Choromanska, LeCun, arXiv:1412.6651, equations 2 and 3 in the synchronous case: each worker
moves a share of the way to the centre, and the centre moves by the sum of these the other way.
EC-DNN names it as a method that can be used together with its own (section 2).
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from torch import Tensor

from kdlab.config import Range, register
from kdlab.train.aggregation.weights import (
    MergeInputs,
    MergeResult,
    WeightAggregation,
    mean_of,
)


@register("train/aggregation/easgd")
@dataclass(frozen=True, kw_only=True)
class Easgd(WeightAggregation):
    """Elastic averaging; the global model is the centre.

    tau: local iterations between communications.
    optimizer: each worker keeps its momentum over a communication, or starts without.
    beta: share of the way that the centre moves to the workers' mean (the paper: 0.9); each worker
        moves beta / workers of its way to the centre.
    """

    beta: Annotated[float, Range(gt=0, le=1)] = 0.9

    remembers: ClassVar[str] = "centre"

    def merge(self, merging: MergeInputs) -> MergeResult:
        mean, local, memory = mean_of(merging.states), merging.local, dict(merging.memory)
        alpha = self.beta / len(merging.states)
        weights, centres = dict[str, Tensor](), dict[str, Tensor]()
        for name, tensor in mean.items():
            if name not in merging.parameters:
                weights[name] = centres[name] = tensor
                continue
            centre = memory[f"centre.{name}"]
            weights[name] = local[name] - alpha * (local[name] - centre)
            centres[name] = memory[f"centre.{name}"] = centre + self.beta * (
                tensor - centre
            )
        return MergeResult(weights=weights, memory=memory, global_weights=centres)
