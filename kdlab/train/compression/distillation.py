"""Distillation of an ensemble into its local models (EC-DNN, Algorithm 2)."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Literal

from kdlab.config import Fault, Range, register
from kdlab.config.spec import NOT_NEGATIVE, SHARE
from kdlab.papers.ec_dnn.round_schedule import StepWeight
from kdlab.train.compression.kind import CompressionSpec


@register("train/compression/distillation")
@dataclass(frozen=True, kw_only=True)
class Distillation(CompressionSpec):
    """Relabel a share of the local data by the ensemble, and train p iterations on it.

    p_iterations: of each compression; null takes p_fraction.
    p_fraction: of all local iterations, for all compressions together (the paper: 0.1).
    weight: beta of Eq. 6, for the first share `rise_after` of the compressions.
    risen_weight: beta after that; the paper has 0.4 and 0.6 on CIFAR, 1 and 1 on ImageNet.
    mu: share of the local data that may be relabelled.
    subset: the same part in all rounds, or a new one in each.
    """

    p_iterations: Annotated[int, Range(ge=1)] | None = None
    p_fraction: Annotated[float, Range(gt=0, le=1)] = 0.1
    weight: Annotated[float, NOT_NEGATIVE] = 0.4
    risen_weight: Annotated[float, NOT_NEGATIVE] = 0.6
    rise_after: Annotated[float, SHARE] = 0.2
    mu: Annotated[float, Range(gt=0, le=1)] = 0.7
    subset: Literal["fixed", "drawn"] = "drawn"

    def cross_faults(self) -> Iterator[Fault]:
        if self.p_iterations is not None and self.p_fraction != Distillation.p_fraction:
            yield Fault("p_fraction", "has no effect with p_iterations")

    def weights(self) -> StepWeight:
        return StepWeight(self.weight, self.risen_weight, self.rise_after)
