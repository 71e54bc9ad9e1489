"""The global model has the mean of the local models' weights (MA-DNN; EC-DNN, Eq. 1)."""

from dataclasses import dataclass

from kdlab.config import register
from kdlab.train.aggregation.weights import WeightAggregation


@register("train/aggregation/model_average")
@dataclass(frozen=True, kw_only=True)
class ModelAverage(WeightAggregation):
    """MA-DNN: average all weights every tau iterations.

    tau: local iterations between communications.
    optimizer: after an average each worker may `keep` or `reset` its momentum.
    """

    called = "ma_dnn"
