"""Codistillation: each model learns from stale predictions of the others.

Anil et al., arXiv:1804.03235, Algorithm 1: beside the true labels a worker learns the mean
predictions of its neighbours, whose weights it fetches from time to time; in between they are
stale, which does no harm. Nothing is averaged: the global model is the ensemble.
"""

from dataclasses import dataclass
from typing import Annotated

from torch import Tensor

from kdlab.config import Range, register
from kdlab.config.spec import POSITIVE, SHARE
from kdlab.losses.local import accelerated_compression
from kdlab.papers.ec_dnn.round_schedule import RoundSchedule
from kdlab.train.aggregation.kind import AggregationSpec


@register("train/aggregation/codistillation")
@dataclass(frozen=True, kw_only=True)
class Codistillation(AggregationSpec):
    """Workers are each other's teachers.

    tau: local iterations between fetches of the neighbours' models.
    weight: of the cross entropy to their mean predictions, beside that to the true labels.
    begins: share of the iterations before it counts, since untrained neighbours teach nothing.
    """

    least_workers = 2
    asks_itself = False
    diverges_by = ("train.lr", "aggregation.weight")

    tau: Annotated[int, Range(ge=1)] = 50
    weight: Annotated[float, POSITIVE] = 1.0
    begins: Annotated[float, SHARE] = 0.1

    def timetable(self, iterations: int, looks: int) -> RoundSchedule:
        return RoundSchedule(
            iterations=iterations,
            tau=self.tau,
            diversity_weight=self.weight,
            begins=self.begins,
            # Models are not fetched before they count.
            exchanged=lambda number, of: float((number + 1) / of >= self.begins),
        )

    def local_loss(
        self, scores: Tensor, hard: Tensor, mean: Tensor | None, weight: float
    ) -> Tensor:
        return hard if mean is None else accelerated_compression(scores, hard, mean, weight)
