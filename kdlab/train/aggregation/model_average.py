"""The global model has the mean of the local models' weights (MA-DNN; EC-DNN, Eq. 1)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from torch import Tensor

from kdlab.config import Range, register
from kdlab.train.aggregation.kind import AggregationSpec


@register("train/aggregation/model_average")
@dataclass(frozen=True, kw_only=True)
class ModelAverage(AggregationSpec):
    """MA-DNN: average all weights every tau iterations.

    tau: local iterations between communications.
    optimizer: each worker keeps its momentum over an average, or starts without.
    """

    tau: Annotated[int, Range(ge=1)] = 16
    optimizer: Literal["keep", "reset"] = "keep"

    def build(self) -> "ModelAverage":
        return self

    def merged(self, states: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
        """Weights and buffers of the global model, from those of the local models.

        An aggregation of one's own is a subclass that does this in another way.

        Args:
            states: of each worker that took part, on the CPU; by name as in `state_dict`.

        Returns:
            The mean of all weights (Eq. 1); counters as the first one has them.
        """
        first, *others = states
        found = {}
        for name, tensor in first.items():
            if not tensor.is_floating_point():
                found[name] = tensor
                continue
            total = tensor.clone()
            for other in others:
                total += other[name]
            found[name] = total / len(states)
        return found
