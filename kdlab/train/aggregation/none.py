"""One student: nothing to aggregate."""

from dataclasses import dataclass

from kdlab.config import register
from kdlab.train.aggregation.kind import AggregationSpec


@register("train/aggregation/none")
@dataclass(frozen=True, kw_only=True)
class NoAggregation(AggregationSpec):
    """One student; the outputs of several are averaged at the end (E-DNN)."""

    joins = "nothing"
    called = "e_dnn"
    combining = "none"
