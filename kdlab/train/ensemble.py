"""`method: {type: train/ensemble}`: several local models that become one."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Literal

from kdlab.config import Fault, Range, register
from kdlab.config.spec import POSITIVE, Spec
from kdlab.data.shards import Shards
from kdlab.models.model import ModelSpec
from kdlab.papers.ec_dnn.parallel import Combining
from kdlab.papers.ec_dnn.timetable import Timetable
from kdlab.train.aggregation.ensemble import EnsembleAggregation
from kdlab.train.aggregation.kind import AggregationSpec
from kdlab.train.aggregation.model_average import ModelAverage
from kdlab.train.aggregation.none import NoAggregation
from kdlab.train.compression.kind import CompressionSpec
from kdlab.train.method import MethodSpec
from kdlab.train.recipe import Recipe

_AT_LEAST_1 = Range(ge=1)

# A worker's step is in float32 or bfloat16, and it saves itself at each reset point.
NOT_LOCAL = ("compile", "channels_last", "label_smoothing", "checkpoint_every_steps")


@dataclass(frozen=True, kw_only=True)
class Contender(Spec):
    """One of several methods that are compared.

    aggregation: how its global model is made.
    workers: null takes method.workers; 1 is training on one machine.
    epochs: over the local data; null takes train.epochs. So all can be given the same time.
    iterations: of each worker, instead of whole epochs.
    """

    aggregation: AggregationSpec
    workers: Annotated[int, _AT_LEAST_1] | None = None
    epochs: Annotated[int, _AT_LEAST_1] | None = None
    iterations: Annotated[int, _AT_LEAST_1] | None = None

    def cross_faults(self) -> Iterator[Fault]:
        if self.epochs is not None and self.iterations is not None:
            yield Fault("epochs", "has no effect with iterations")


@register("train/ensemble")
@dataclass(frozen=True, kw_only=True)
class Ensemble(MethodSpec):
    """Local models on local data, made one by `aggregation` (EC-DNN, MA-DNN, E-DNN, S-DNN).

    workers: K, each with an equal part of the training images unless `shards` says
        otherwise.
    compare: the same training once for each of these, by name; instead of `aggregation`.
    start: first weights of all workers `equal`, or each its `own`; null is equal where
        weights are averaged and own elsewhere (Algorithm 1).
    models: networks of the workers where they differ; as many as workers.
    final: the student is the local model with the smallest loss on its own training data
        (the paper), or the most accurate one on `validation`.
    looks: how often local and global models are tested while they train.
    processes: each worker in a process of its own; false trains them one after the other
        in the run's process. Results are the same.
    gbit_per_s: between machines, for the modelled time of a communication.
    hang_s: a worker without a sign of life for so long is killed and started again.
    """

    workers: Annotated[int, Range(ge=1, le=64)] = 4
    shards: Shards = field(default_factory=Shards)
    compare: Mapping[str, Contender] = field(default_factory=dict)
    start: Literal["equal", "own"] | None = None
    models: tuple[ModelSpec, ...] = ()
    final: Literal["training_loss", "validation"] = "training_loss"
    looks: Annotated[int, _AT_LEAST_1] = 20
    processes: bool = True
    gbit_per_s: Annotated[float, POSITIVE] = 1.0
    hang_s: Annotated[float, POSITIVE] = 60.0

    def cross_faults(self) -> Iterator[Fault]:
        if self.models and len(self.models) != self.workers:
            yield Fault(
                "models", f"has {len(self.models)} networks for {self.workers} workers"
            )
        for name, contender in self.compare.items():
            yield from self.faults_of(contender, f"compare.{name}.")

    def faults_of(self, contender: Contender, at: str = "") -> Iterator[Fault]:
        aggregation = contender.aggregation
        if not isinstance(aggregation, NoAggregation | ModelAverage | EnsembleAggregation):
            yield Fault(
                f"{at}aggregation",
                f"is {aggregation.component}; local models are averaged "
                "(train/aggregation/model_average), made an ensemble of "
                "(train/aggregation/ensemble), or left alone (train/aggregation/none)",
            )
        if isinstance(aggregation, ModelAverage) and len(set(self.models)) > 1:
            unlike = ", ".join(dict.fromkeys(str(m.component) for m in self.models))
            yield Fault(
                f"{at}aggregation",
                f"averages the weights of unlike networks ({unlike}); only the outputs of "
                "these can be averaged: train/aggregation/ensemble",
            )
        if self.models and (contender.workers or self.workers) != self.workers:
            yield Fault(f"{at}workers", f"is not that of models ({len(self.models)})")

    def contenders(self, aggregation: AggregationSpec) -> dict[str, Contender]:
        """What is trained, by name; without `compare` the experiment's own aggregation."""
        if self.compare:
            return dict(self.compare)
        own = Contender(aggregation=aggregation)
        return {name_of(own, self.workers): own}

    def workers_of(self, contender: Contender) -> int:
        return contender.workers or self.workers

    def recipe_of(self, contender: Contender, recipe: Recipe) -> Recipe:
        return (
            recipe if contender.epochs is None else replace(recipe, epochs=contender.epochs)
        )

    def starts_equal(self, aggregation: AggregationSpec) -> bool:
        if self.start is None:
            return isinstance(aggregation, ModelAverage)
        return self.start == "equal"

    def build(self) -> "Ensemble":
        return self


def name_of(contender: Contender, workers: int) -> str:
    """As the paper calls it."""
    if (contender.workers or workers) == 1:
        return "s_dnn"
    match contender.aggregation:
        case ModelAverage():
            return "ma_dnn"
        case EnsembleAggregation(compression=None):
            return "e_dnn"
        case EnsembleAggregation():
            return "ec_dnn"
    return "e_dnn"


def combining_of(aggregation: AggregationSpec) -> Combining:
    """How models are made one, of one's own aggregations too."""
    match aggregation:
        case ModelAverage():
            return "model_average"
        case EnsembleAggregation():
            return "ensemble"
    return "none"


def timetable_of(aggregation: AggregationSpec, iterations: int, looks: int) -> Timetable:
    """Of so many local iterations."""
    if isinstance(aggregation, ModelAverage):
        return Timetable(iterations=iterations, tau=aggregation.tau, averages=True)
    if not isinstance(aggregation, EnsembleAggregation):
        return Timetable(iterations=iterations, tau=None, looks=looks)
    spec: CompressionSpec | None = aggregation.compression
    if spec is None:
        return Timetable(iterations=iterations, tau=aggregation.tau, looks=looks)
    return Timetable(
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
