"""The global model is the mean of the local models' outputs (EC-DNN, Eq. 4)."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated

from kdlab.config import Fault, Range, register
from kdlab.config.spec import NOT_NEGATIVE
from kdlab.train.aggregation.kind import AggregationSpec
from kdlab.train.compression.distillation import Distillation
from kdlab.train.compression.kind import CompressionSpec


@register("train/aggregation/ensemble")
@dataclass(frozen=True, kw_only=True)
class EnsembleAggregation(AggregationSpec):
    """EC-DNN: exchange models every tau iterations, and compress their ensemble.

    tau: local iterations between communications; null is one at the end (E-DNN).
    diversity_weight: alpha of Eq. 5.
    compression: null leaves the local models as they are (with tau null that is E-DNN).
    compress_last: also after the last communication.
    """

    tau: Annotated[int, Range(ge=1)] | None = 2000
    diversity_weight: Annotated[float, NOT_NEGATIVE] = 0.6
    compression: CompressionSpec | None = field(default_factory=Distillation)
    compress_last: bool = False

    def cross_faults(self) -> Iterator[Fault]:
        if self.compression is None and self.compress_last:
            yield Fault("compress_last", "is true, and there is no compression")

    @property
    def compresses_in_line(self) -> bool:
        """Whether compressions take their batches from those of the training."""
        return self.compression is not None and self.compression.in_line

    def build(self) -> "EnsembleAggregation":
        return self
