"""The global model is the mean of the local models' outputs (EC-DNN, Eq. 4)."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated

from kdlab.config import Fault, Range, register
from kdlab.config.spec import NOT_NEGATIVE
from kdlab.papers.ec_dnn.round_schedule import RoundSchedule
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

    diverges_by = ("train.lr", "aggregation.diversity_weight")
    tau: Annotated[int, Range(ge=1)] | None = 2000
    diversity_weight: Annotated[float, NOT_NEGATIVE] = 0.6
    compression: CompressionSpec | None = field(default_factory=Distillation)
    compress_last: bool = False

    def cross_faults(self) -> Iterator[Fault]:
        if self.compression is None and self.compress_last:
            yield Fault("compress_last", "is true, and there is no compression")

    @property
    def called(self) -> str:
        return "e_dnn" if self.compression is None else "ec_dnn"

    @property
    def compressing(self) -> CompressionSpec | None:
        return self.compression

    def timetable(self, iterations: int, looks: int) -> RoundSchedule:
        spec = self.compression
        if spec is None:
            return RoundSchedule(iterations=iterations, tau=self.tau, looks=looks)
        return RoundSchedule(
            iterations=iterations,
            tau=self.tau,
            looks=looks,
            compresses=True,
            p_iterations=spec.p_iterations,
            p_fraction=spec.p_fraction,
            compression_weight=spec.weights(),
            diversity_weight=self.diversity_weight,
            compress_last=self.compress_last,
        )

    def unfit(self, table: RoundSchedule, validation: int) -> str | None:
        p = None if self.compression is None else self.compression.p_iterations
        if p is not None and p > table.iterations:
            return (
                f"compression.p_iterations is {p}, longer than the whole training of "
                f"{table.iterations} iterations. Lower it."
            )
        return super().unfit(table, validation)
