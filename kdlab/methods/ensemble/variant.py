"""One of the ways to make local models one: what is compared, by name."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

from kdlab.config import Fault, Range
from kdlab.config.spec import Spec
from kdlab.papers.ec_dnn.parallel import Combining
from kdlab.papers.ec_dnn.round_schedule import RoundSchedule
from kdlab.train.aggregation.codistillation import Codistillation
from kdlab.train.aggregation.ensemble import EnsembleAggregation
from kdlab.train.aggregation.kind import AggregationSpec
from kdlab.train.aggregation.model_average import ModelAverage
from kdlab.train.aggregation.soup import Soup
from kdlab.train.aggregation.weights import WeightAggregation
from kdlab.train.compression.kind import CompressionSpec

_POSITIVE = Range(ge=1)


@dataclass(frozen=True, kw_only=True)
class Variant(Spec):
    """One of several methods that are compared.

    aggregation: how its global model is made.
    workers: null takes method.workers; 1 is training on one machine.
    epochs: over the local data; null takes train.epochs. So all can be given the same time.
    iterations: of each worker, instead of whole epochs.
    """

    aggregation: AggregationSpec
    workers: Annotated[int, _POSITIVE] | None = None
    epochs: Annotated[int, _POSITIVE] | None = None
    iterations: Annotated[int, _POSITIVE] | None = None

    def cross_faults(self) -> Iterator[Fault]:
        if self.epochs is not None and self.iterations is not None:
            yield Fault("epochs", "has no effect with iterations")


def name_of(variant: Variant, workers: int) -> str:
    """As the paper calls it."""
    if (variant.workers or workers) == 1:
        return "s_dnn"
    match variant.aggregation:
        case ModelAverage():
            return "ma_dnn"
        case WeightAggregation() | Codistillation():
            return str(variant.aggregation.component).rpartition("/")[2]
        case EnsembleAggregation(compression=CompressionSpec()):
            return "ec_dnn"
    return "e_dnn"


def combining_of(aggregation: AggregationSpec) -> Combining:
    """How models are made one, of one's own aggregations too."""
    match aggregation:
        case Soup(recipe="greedy"):  # each worker must have all of them
            return "all_models"
        case WeightAggregation():
            return "model_average"
        case EnsembleAggregation() | Codistillation():
            return "ensemble"
    return "none"


def timetable_of(
    aggregation: AggregationSpec, iterations: int, looks: int
) -> RoundSchedule:
    """The schedule of so many local iterations."""
    if isinstance(aggregation, WeightAggregation):
        return RoundSchedule(
            iterations=iterations,
            tau=aggregation.interval(iterations),
            averages=True,
            exchanged=aggregation.exchanged,
        )
    if isinstance(aggregation, Codistillation):
        return RoundSchedule(
            iterations=iterations,
            tau=aggregation.tau,
            diversity_weight=aggregation.weight,
            begins=aggregation.begins,
            # Nobody fetches models before they count.
            exchanged=lambda number, of: float((number + 1) / of >= aggregation.begins),
        )
    if not isinstance(aggregation, EnsembleAggregation):
        return RoundSchedule(iterations=iterations, tau=None, looks=looks)
    spec: CompressionSpec | None = aggregation.compression
    if spec is None:
        return RoundSchedule(iterations=iterations, tau=aggregation.tau, looks=looks)
    return RoundSchedule(
        iterations=iterations,
        tau=aggregation.tau,
        looks=looks,
        compresses=True,
        p_iterations=spec.p_iterations,
        p_fraction=spec.p_fraction,
        compression_weight=spec.weights(),
        diversity_weight=aggregation.diversity_weight,
        compress_last=aggregation.compress_last,
    )
