"""The global model has the mean of the local models' weights (MA-DNN; EC-DNN, Eq. 1)."""

from dataclasses import dataclass
from typing import Annotated, Literal

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
