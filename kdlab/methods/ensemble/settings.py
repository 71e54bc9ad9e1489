"""What an ensemble experiment can be told, and what is wrong with it by its spec alone."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

from kdlab.config import Fault, Range
from kdlab.config.spec import POSITIVE
from kdlab.data.shards import Shards
from kdlab.experiment.method import recipe_faults
from kdlab.experiment.spec import ExperimentSpec, MethodSettings
from kdlab.methods.ensemble.variant import Variant
from kdlab.models.model import ModelSpec
from kdlab.soft_labels.source import SourceSpec
from kdlab.train.aggregation.kind import AggregationSpec

_POSITIVE = Range(ge=1)
_NOT_LOCAL = {"ema": "a local model is reset to weights that all have, and its mean is not"}


@dataclass(frozen=True, kw_only=True)
class EnsembleSettings(MethodSettings):
    """Workers, what each of them has, and what is compared.

    workers: K, each with an equal part of the training images unless `shards` says
        otherwise.
    compare: the same training once for each of these, by name; instead of `aggregation`.
    start: first weights of all workers `equal`, or each its `own`; null is equal where
        weights are averaged and own elsewhere (Algorithm 1).
    models: networks of the workers where they differ; as many as workers.
    final: the student is the local model with the smallest loss on its own training data
        (the paper), or the most accurate one on `validation`.
    looks: how often local and global models are tested while they train, at communications.
    recalibrate: training images that the batch norms of an average of weights are shown before it
        is looked at or kept; 0 leaves the mean of its models' statistics. No model trains with
        them.
    processes: each worker in a process of its own; false trains them one after the other
        in the run's process. Results are the same.
    stacked: workers in one process take their local steps at once, on stacked weights (vmap): for
        a GPU, which small networks leave idle; slower on CPUs. Equal but for rounding, and dropout.
    gbit_per_s: between machines, for the modelled time of a communication.
    hang_s: a worker without a sign of life for so long (two minutes while it starts) is
        killed and started again.
    wait_for_lost: the others wait for a worker that was lost, which does again what it was at:
        nothing is lost. false has rounds go on without it until it is back (K' models), and
        what it was not trained on is counted and said.
    """

    needs_labels = True
    workers: Annotated[int, Range(ge=1, le=64)] = 4
    shards: Shards = field(default_factory=Shards)
    compare: Mapping[str, Variant] = field(default_factory=dict)
    start: Literal["equal", "own"] | None = None
    models: tuple[ModelSpec, ...] = ()
    final: Literal["training_loss", "validation"] = "training_loss"
    looks: Annotated[int, _POSITIVE] = 20
    recalibrate: Annotated[int, Range(ge=0)] = 1024
    processes: bool = True
    stacked: bool = False
    gbit_per_s: Annotated[float, POSITIVE] = 1.0
    hang_s: Annotated[float, POSITIVE] = 60.0
    wait_for_lost: bool = True

    def cross_faults(self) -> Iterator[Fault]:
        if self.models and len(self.models) != self.workers:
            yield Fault(
                "models", f"has {len(self.models)} networks for {self.workers} workers"
            )
        for name, variant in self.compare.items():
            yield from self.faults_of(variant, f"compare.{name}.")

    def faults_of(self, variant: Variant, at: str = "") -> Iterator[Fault]:
        aggregation, workers = variant.aggregation, variant.workers or self.workers
        if aggregation.joins == "ranks":
            yield Fault(
                f"{at}aggregation",
                f"is {aggregation.component}; local models are averaged "
                "(train/aggregation/model_average, diloco, papa and others), made an ensemble of "
                "(train/aggregation/ensemble), each other's teachers "
                "(train/aggregation/codistillation), or left alone (train/aggregation/none)",
            )
        if aggregation.remembers and self.start == "own":
            yield Fault(
                "start",
                f"is own, and {aggregation.component} remembers the weights that all begin with",
            )
        if workers < aggregation.least_workers:
            yield Fault(
                f"{at}workers",
                f"is {workers}, and {aggregation.called} needs {aggregation.least_workers}",
            )
        if aggregation.averages and len(set(self.models)) > 1:
            unlike = ", ".join(dict.fromkeys(str(m.component) for m in self.models))
            yield Fault(
                f"{at}aggregation",
                f"averages the weights of unlike networks ({unlike}); only the outputs of "
                "these can be averaged: train/aggregation/ensemble",
            )
        if self.models and workers != self.workers:
            yield Fault(f"{at}workers", f"is not that of models ({len(self.models)})")

    def variants(self, aggregation: AggregationSpec) -> dict[str, Variant]:
        """What is trained, by name; without `compare` the experiment's own aggregation."""
        if self.compare:
            return dict(self.compare)
        own = Variant(aggregation=aggregation)
        return {own.called(self.workers): own}

    # As kdlab/experiment/method.py wants it

    def faults(self, spec: ExperimentSpec) -> Iterator[Fault]:
        if self.compare and spec.aggregation.joins != "nothing":
            yield Fault(
                "aggregation", "is of one method, and method.compare names its own for each"
            )
        if not self.compare:
            yield from self.faults_of(Variant(aggregation=spec.aggregation))
        if spec.workers is not None and not self.processes:
            yield Fault("method.processes", "is false, and workers are to be started")
        if spec.data.augment.mixes:
            yield Fault(
                "data.augment", "mixes images, which local models are not trained on"
            )
        if spec.data.sampling.active:
            yield Fault(
                "data.sampling", "is of one student; here method.shards deals images"
            )
        served = spec.soft_labels.needs_teacher == "served"
        for name, variant in self.variants(spec.aggregation).items():
            if served and variant.aggregation.compresses_in_line:
                yield Fault(
                    "soft_labels",
                    f"are served batch by batch, and {name} compresses on the batches of its "
                    "training in between (mu: 1); give it mu below 1",
                )
        if self.stacked:
            yield from self._unstackable(spec)
        yield from recipe_faults(spec.train, _NOT_LOCAL, "methods/ensemble")

    def _unstackable(self, spec: ExperimentSpec) -> Iterator[Fault]:
        if self.processes:
            yield Fault(
                "method.stacked", "is true, and processes too: set processes: false"
            )
        if len(set(self.models)) > 1:
            yield Fault("method.stacked", "is true, and models differ")
        without = {
            "accumulate": 1,
            "compile": False,
            "precision": "fp32",
            "quantise_after": None,
        }
        for name, only in without.items():
            if (value := getattr(spec.train, name)) != only:
                yield Fault(
                    f"train.{name}", f"is {value}; with stacked weights it is {only}"
                )

    def compared(self, spec: ExperimentSpec) -> dict[str, SourceSpec]:
        return dict.fromkeys(self.variants(spec.aggregation), spec.soft_labels)

    def has_ranks(self, spec: ExperimentSpec) -> bool:
        return True
