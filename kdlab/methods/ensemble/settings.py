"""Settings of an ensemble experiment, and their faults as far as the spec shows them."""

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
_NOT_LOCAL = {"ema": "local models are reset to the global one, and their mean is not"}


@dataclass(frozen=True, kw_only=True)
class EnsembleSettings(MethodSettings):
    """Workers, their data and models, and the compared variants.

    workers: K, each with an equal part of the training images unless `shards` differs.
    compare: train once with each of these variants, by name; instead of `aggregation`.
    start: initial weights of all workers are `equal`, or each has its `own`; null is equal where
        weights are averaged and own elsewhere (Algorithm 1).
    models: networks of the workers where they differ; as many as workers.
    final: the student is the local model with the smallest loss on its own training data
        (the paper), or the most accurate one on `validation`.
    looks: number of evaluations of local and global models, at communications.
    recalibrate: training images on which batch norms of averaged weights are recalibrated before
        they are evaluated or exported; 0 averages the statistics. No model trains with them.
    processes: each worker in its own process; false trains them one after the other in the
        run's process, with equal results.
    stacked: workers in one process take their local steps at once, on stacked weights (vmap): for
        a GPU, which small networks leave idle; slower on CPUs. Equal but for rounding and dropout.
    gbit_per_s: between machines, for the modelled time of a communication.
    hang_s: a worker without a sign of life for this long (two minutes while it starts) is
        killed and restarted.
    wait_for_lost: the others wait for a lost worker, which repeats its round, so no samples are
        lost. With false, rounds continue without it (K' models) until it is back, and the
        samples it missed are counted and reported.
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
                "start", f"is own, and {aggregation.component} needs equal initial weights"
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
                f"averages weights, and the networks differ ({unlike}); average their outputs: "
                "train/aggregation/ensemble",
            )
        if self.models and workers != self.workers:
            yield Fault(
                f"{at}workers", f"differs from the number of models ({len(self.models)})"
            )

    def variants(self, aggregation: AggregationSpec) -> dict[str, Variant]:
        """Return the variants by name; without `compare`, the experiment's aggregation alone."""
        if self.compare:
            return dict(self.compare)
        variant = Variant(aggregation=aggregation)
        return {variant.called(self.workers): variant}

    # Interface of kdlab/experiment/method.py

    def faults(self, spec: ExperimentSpec) -> Iterator[Fault]:
        if self.compare and spec.aggregation.joins != "nothing":
            yield Fault(
                "aggregation",
                "has no effect with method.compare, whose variants each have one",
            )
        if not self.compare:
            yield from self.faults_of(Variant(aggregation=spec.aggregation))
        if spec.workers is not None and not self.processes:
            yield Fault("method.processes", "is false, and workers asks for processes")
        if spec.data.augment.mixes:
            yield Fault("data.augment", "mixes images, which local models do not support")
        if spec.data.sampling.active:
            yield Fault(
                "data.sampling",
                "is for one student; here method.shards deals out the images",
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
                "method.stacked", "is true, and so is processes; set processes: false"
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
                yield Fault(f"train.{name}", f"is {value}; stacked weights need {only}")

    def compared(self, spec: ExperimentSpec) -> dict[str, SourceSpec]:
        return dict.fromkeys(self.variants(spec.aggregation), spec.soft_labels)

    def has_ranks(self, spec: ExperimentSpec) -> bool:
        return True
