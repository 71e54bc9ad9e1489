"""One student: nothing to aggregate."""

from dataclasses import dataclass

from kdlab.config import register
from kdlab.train.aggregation.kind import AggregationSpec


@register("train/aggregation/none")
@dataclass(frozen=True, kw_only=True)
class NoAggregation(AggregationSpec):
    """One student trains alone."""

    def build(self) -> None:
        return None
