"""BMUF: averages of weights with a momentum over communications.

Chen and Huo, ICASSP 2016 (blockwise model-update filtering): the update of a block of iterations is
the mean of the workers minus the global weights; a momentum of such updates moves these. EC-DNN
names it as a method that can be used together with its own (section 2).
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from kdlab.config import Range, register
from kdlab.config.spec import POSITIVE
from kdlab.train.aggregation.weights import (
    MergeInputs,
    MergeResult,
    WeightAggregation,
    mean_of,
)


@register("train/aggregation/bmuf")
@dataclass(frozen=True, kw_only=True)
class Bmuf(WeightAggregation):
    """Averages with a block momentum; workers continue from the look-ahead weights (Nesterov).

    tau: local iterations between communications.
    optimizer: each worker keeps its momentum over a communication, or starts without.
    block_momentum: null is 1 - 1 / workers, as the authors take it.
    block_lr: factor of the update of a block.
    """

    block_momentum: Annotated[float, Range(ge=0, lt=1)] | None = None
    block_lr: Annotated[float, POSITIVE] = 1.0

    remembers: ClassVar[str] = "global"

    def merge(self, merging: MergeInputs) -> MergeResult:
        mean, memory = mean_of(merging.states), dict(merging.memory)
        eta = self.block_momentum
        eta = 1 - 1 / len(merging.states) if eta is None else eta
        weights, global_weights = dict(mean), dict(mean)
        for name in sorted(merging.parameters):
            before = memory[f"global.{name}"]
            update = self.block_lr * (mean[name] - before)
            last = memory.get(f"update.{name}")
            if last is not None:
                # The workers started from the look-ahead weights: their mean is relative to these.
                update = eta * last + self.block_lr * (mean[name] - before - eta * last)
            after = before + update
            memory[f"global.{name}"], memory[f"update.{name}"] = after, update
            global_weights[name], weights[name] = after, after + eta * update
        return MergeResult(weights=weights, memory=memory, global_weights=global_weights)
