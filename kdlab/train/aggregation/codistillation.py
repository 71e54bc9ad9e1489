"""Codistillation: each model learns from what the others said a while ago.

Anil et al., arXiv:1804.03235, Algorithm 1: beside the true labels a worker learns the mean
predictions of its neighbours, whose weights it fetches now and then; between, they are stale, and
that does no harm. Nothing is averaged: the global model is the ensemble.
"""

from dataclasses import dataclass
from typing import Annotated

from kdlab.config import Range, register
from kdlab.config.spec import POSITIVE, SHARE
from kdlab.train.aggregation.kind import AggregationSpec


@register("train/aggregation/codistillation")
@dataclass(frozen=True, kw_only=True)
class Codistillation(AggregationSpec):
    """Workers are each other's teachers.

    tau: local iterations until the neighbours' models are fetched again.
    weight: of the cross entropy to their mean predictions, beside that to the true labels.
    begins: share of the iterations before it counts; the neighbours must know something.
    """

    tau: Annotated[int, Range(ge=1)] = 50
    weight: Annotated[float, POSITIVE] = 1.0
    begins: Annotated[float, SHARE] = 0.1

    def build(self) -> "Codistillation":
        return self
