"""One student: nothing to aggregate."""

from dataclasses import dataclass

from kdlab.config import register
from kdlab.train.aggregation.kind import AggregationSpec


@register("train/aggregation/none")
@dataclass(frozen=True, kw_only=True)
class NoAggregation(AggregationSpec):
    """One student trains alone; of several the outputs are averaged in the end (E-DNN)."""

    joins = "nothing"
    called = "e_dnn"
    combining = "none"
