"""The whole experiment as one spec: what a file under configs/ describes."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from kdlab.cluster.chaos import Chaos
from kdlab.cluster.local_pool import LocalPool
from kdlab.cluster.pool import PoolSpec
from kdlab.cluster.security import Files, Tls, address_faults
from kdlab.cluster.served import Served
from kdlab.cluster.wire import check_address
from kdlab.config import Fault, Range, Spec
from kdlab.data.images import DataSpec
from kdlab.losses.hinton import Hinton
from kdlab.losses.soft_loss import LossSpec
from kdlab.models.model import ModelSpec
from kdlab.soft_labels.cached import Cached
from kdlab.soft_labels.in_process import InProcess
from kdlab.soft_labels.none import NoTeacher
from kdlab.soft_labels.source import SourceSpec
from kdlab.train.aggregation.all_reduce import AllReduce
from kdlab.train.aggregation.ensemble import EnsembleAggregation
from kdlab.train.aggregation.kind import AggregationSpec
from kdlab.train.aggregation.model_average import ModelAverage
from kdlab.train.aggregation.none import NoAggregation
from kdlab.train.blockwise import Blockwise
from kdlab.train.ensemble import NOT_LOCAL, Contender, Ensemble
from kdlab.train.method import MethodSpec
from kdlab.train.recipe import Recipe
from kdlab.train.student import StudentMethod
from kdlab.train.teacher import TeacherSpec

SourceName = Literal["none", "in_process", "cached", "served"]

# Blocks are trained in float32, without labels, and saved after each epoch.
_NOT_BLOCKWISE = (
    "precision",
    "compile",
    "channels_last",
    "label_smoothing",
    "checkpoint_every_steps",
)


@dataclass(frozen=True, kw_only=True)
class Tracking(Spec):
    """Where MLflow keeps the run.

    experiment: runs are grouped under it; null is the config's name.
    uri: of the MLflow store; null is an SQLite file beside the run folders.
    """

    experiment: str | None = None
    uri: str | None = None
    enabled: bool = True


@dataclass(frozen=True, kw_only=True)
class Workers(Spec):
    """A Dask cluster on whose workers the ranks of a student are started.

    The run folder and the data must be at the same paths on all of its machines.

    address: of its scheduler, such as tcp://10.0.0.1:8786 or tls://10.0.0.1:8786.
    tls: certificates; needed for a tls:// address.
    insecure: plain TCP, where the network keeps others out.
    """

    address: str
    tls: Tls | None = None
    insecure: bool = False

    def cross_faults(self) -> Iterator[Fault]:
        yield from address_faults(self.address, self.tls, insecure=self.insecure)

    def certificates(self) -> Files | None:
        return None if self.tls is None else self.tls.files(Path())

    def check(self) -> None:
        """Whether its scheduler answers.

        Raises:
            SchedulerUnreachable: it does not.
        """
        check_address(self.address, tls=self.certificates())


@dataclass(frozen=True, slots=True)
class Member:
    """One training of a run: a source of soft labels (or a plan of blocks) and a seed."""

    name: str  # "served/seed0"
    source_name: str  # of blockwise distillation the plan, of local models the contender
    source: SourceSpec
    seed: int


@dataclass(frozen=True, kw_only=True)
class ExperimentSpec(Spec):
    """An experiment. `compare` runs it once per named soft-label source.

    workers: of a Dask cluster, where a student with several ranks is trained; null is this
        machine.
    """

    about: str = ""
    method: MethodSpec = field(default_factory=StudentMethod)
    data: DataSpec
    teacher: TeacherSpec | tuple[TeacherSpec, ...] | None = None
    teacher_pool: PoolSpec | None = None
    student: ModelSpec
    loss: LossSpec = field(default_factory=Hinton)
    soft_labels: SourceSpec = field(default_factory=NoTeacher)
    aggregation: AggregationSpec = field(default_factory=NoAggregation)
    train: Recipe = field(default_factory=Recipe)
    seeds: tuple[Annotated[int, Range(ge=0)], ...] = (0,)
    compare: tuple[SourceName, ...] = ()
    tracking: Tracking = field(default_factory=Tracking)
    chaos: Chaos | None = None
    workers: Workers | None = None

    def cross_faults(self) -> Iterator[Fault]:
        if not self.seeds or len(set(self.seeds)) < len(self.seeds):
            yield Fault("seeds", f"is {list(self.seeds)}; give at least one, each once")
        if len(set(self.compare)) < len(self.compare):
            yield Fault("compare", f"is {list(self.compare)}; name each source once")
        if "served" in self.compare and self.soft_labels.needs_teacher != "served":
            yield Fault(
                "compare",
                "names served, but soft_labels is "
                f"{self.soft_labels.component}; describe the served source there "
                "(type: cluster/served)",
            )
        needs = {member.source.needs_teacher for member in self.members()}
        if isinstance(self.method, Blockwise):
            yield from self._blockwise_faults(self.method)
        elif needs - {"none"} and not self.teachers():
            yield Fault("teacher", f"is missing; {self._who_needs()} needs one")
        if "served" in needs and self.teacher_pool is None:
            yield Fault(
                "teacher_pool",
                "is missing; served soft labels need one (use: teacher_pools/local)",
            )
        yield from _ut_faults(self.soft_labels, "soft_labels", self.labelled.batch)
        yield from self._aggregation_faults()
        yield from self._chaos_faults()
        if self.workers is not None and not self._grouped:
            yield Fault(
                "workers",
                "is set, and one student in one process has no ranks to start there; "
                "aggregation.type=train/aggregation/all_reduce",
            )

    def _aggregation_faults(self) -> Iterator[Fault]:
        if isinstance(self.method, Ensemble):
            yield from self._ensemble_faults(self.method)
        elif isinstance(self.aggregation, ModelAverage | EnsembleAggregation):
            yield Fault(
                "aggregation",
                f"is {self.aggregation.component}, which is of several local models; "
                "method: {type: train/ensemble} trains those",
            )
        if isinstance(self.aggregation, AllReduce):
            least = 2 * self.aggregation.ranks
            if self.train.batch < least:
                yield Fault(
                    "train.batch",
                    f"is {self.train.batch} and aggregation.ranks is "
                    f"{self.aggregation.ranks}; each rank needs at least two samples of "
                    f"every batch: {least}",
                )

    def _blockwise_faults(self, method: Blockwise) -> Iterator[Fault]:
        count = len(self.teachers())
        if count != 1:
            has = "is missing" if not count else f"has {count} members"
            yield Fault("teacher", f"{has}; train/blockwise needs one, block by block")
        if not isinstance(self.aggregation, NoAggregation):
            yield Fault(
                "aggregation",
                f"is {self.aggregation.component}; train/blockwise shares gradients itself",
            )
        if self.compare:
            yield Fault("compare", "is of soft labels; compare plans with method.compare")
        if method.prefix is not None:
            what, at = "the teacher's first blocks", "method.prefix"
            yield from self._second_pool_faults(method.prefix.source, at, what)
        if method.afterwards is None and not isinstance(self.soft_labels, NoTeacher):
            yield Fault(
                "soft_labels",
                f"is {self.soft_labels.component}, and only method.fine_tune or "
                "method.retrain would use it",
            )
        plain = Recipe()
        for name in _NOT_BLOCKWISE:
            if getattr(self.train, name) != getattr(plain, name):
                yield Fault(
                    f"train.{name}",
                    f"is {getattr(self.train, name)}; train/blockwise does not have it "
                    "(method.fine_tune and method.retrain do)",
                )

    def _ensemble_faults(self, method: Ensemble) -> Iterator[Fault]:
        if self.compare:
            yield Fault("compare", "is of soft labels; compare with method.compare")
        if method.compare and not isinstance(self.aggregation, NoAggregation):
            yield Fault(
                "aggregation", "is of one method, and method.compare names its own for each"
            )
        if not method.compare:
            own = Contender(aggregation=self.aggregation)
            yield from method.faults_of(own)
        if self.workers is not None and not method.processes:
            yield Fault("method.processes", "is false, and workers are to be started")
        for name, contender in method.contenders(self.aggregation).items():
            spec = getattr(contender.aggregation, "compression", None)
            served = isinstance(self.soft_labels, Served)
            relabel = getattr(contender.aggregation, "relabel", None)
            if relabel is not None:
                path = f"method.compare.{name}." if method.compare else ""
                at = f"{path}aggregation.relabel"
                yield from self._second_pool_faults(relabel, at, "the local models")
            if served and spec is not None and getattr(spec, "mu", 0) == 1:
                yield Fault(
                    "soft_labels",
                    f"are served batch by batch, and {name} compresses on the batches of its "
                    "training in between (mu: 1); give it mu below 1",
                )
        if self.train.precision == "fp16":
            yield Fault("train.precision", "is fp16; local models take fp32 or bf16")
        plain = Recipe()
        for name in NOT_LOCAL:
            if getattr(self.train, name) != getattr(plain, name):
                yield Fault(
                    f"train.{name}",
                    f"is {getattr(self.train, name)}; train/ensemble does not have it",
                )

    def _second_pool_faults(
        self, source: SourceSpec, at: str, what: str
    ) -> Iterator[Fault]:
        """Of a pool that serves something else than the teacher."""
        if self.teacher_pool is None:
            yield Fault("teacher_pool", f"is missing; {at} needs one (teacher_pools/local)")
        elif isinstance(self.soft_labels, Served) and not isinstance(
            self.teacher_pool, LocalPool
        ):
            yield Fault(
                "teacher_pool",
                f"would serve the whole teacher for soft_labels and {what} for {at}; only "
                "cluster/local_pool can do both",
            )
        path = at if at.endswith("relabel") else f"{at}.source"
        yield from _ut_faults(source, path, self.train.batch)

    def _chaos_faults(self) -> Iterator[Fault]:
        if self.chaos is None:
            return
        asked = [kind for kind, weight in self.chaos.weights().items() if weight > 0]
        pool = self.teacher_pool
        if any(kind.endswith("teacher") for kind in asked) and not isinstance(
            pool, LocalPool
        ):
            yield Fault(
                "chaos",
                f"asks for {', '.join(asked)}, and only teachers of cluster/local_pool can "
                "be hit; use: teacher_pools/local",
            )
        if any(kind.endswith("rank") for kind in asked) and not self._grouped:
            yield Fault(
                "chaos",
                f"asks for {', '.join(asked)}, and one student in one process has no ranks; "
                "aggregation.type=train/aggregation/all_reduce",
            )
        if any(kind.endswith("rank") for kind in asked) and self.workers is not None:
            yield Fault(
                "chaos",
                f"asks for {', '.join(asked)}, and ranks on Dask workers cannot be hit from "
                "here; only those of this machine can",
            )
        if "partition_teacher" in asked and isinstance(pool, LocalPool) and not pool.chaos:
            yield Fault("teacher_pool.chaos", "is false; partition_teacher needs it true")

    @property
    def _grouped(self) -> bool:
        """Whether a student has processes of its own."""
        own = isinstance(self.method, Blockwise | Ensemble)
        return own or isinstance(self.aggregation, AllReduce)

    def _who_needs(self) -> str:
        return next(
            str(m.source.component)
            for m in self.members()
            if m.source.needs_teacher != "none"
        )

    @property
    def labelled(self) -> Recipe:
        """The training that soft labels are for."""
        afterwards = self.method.afterwards if isinstance(self.method, Blockwise) else None
        return afterwards or self.train

    def teachers(self) -> tuple[TeacherSpec, ...]:
        """None, one, or the members of an ensemble."""
        if self.teacher is None:
            return ()
        return self.teacher if isinstance(self.teacher, tuple) else (self.teacher,)

    def sources(self) -> dict[str, SourceSpec]:
        """The soft-label sources by their short names, or what else is compared."""
        if isinstance(self.method, Blockwise):
            return dict.fromkeys(self.method.plans(), self.soft_labels)
        if isinstance(self.method, Ensemble):
            contenders = self.method.contenders(self.aggregation)
            return dict.fromkeys(contenders, self.soft_labels)
        if not self.compare:
            return {short_name(self.soft_labels): self.soft_labels}
        defaults: dict[str, SourceSpec] = {
            "none": NoTeacher(),
            "in_process": InProcess(),
            "cached": Cached(),
            "served": self.soft_labels,
        }
        defaults[short_name(self.soft_labels)] = self.soft_labels
        return {name: defaults[name] for name in self.compare}

    def members(self) -> list[Member]:
        """Seed by seed, so that the first rows of a comparison come early."""
        return [
            Member(f"{name}/seed{seed}", name, source, seed)
            for seed in self.seeds
            for name, source in self.sources().items()
        ]

    def described(self) -> str:
        """The source that the top-level keys of the result describe."""
        names = list(self.sources())
        if isinstance(self.method, Blockwise) and self.method.plan in names:
            return self.method.plan
        return "served" if "served" in names else names[-1]


def _ut_faults(source: SourceSpec, at: str, batch: int) -> Iterator[Fault]:
    """In other units it is known only when the run begins."""
    if not isinstance(source, Served) or source.thresholds_in != "samples":
        return
    if source.ut is not None and source.ut <= batch:
        yield Fault(
            f"{at}.ut",
            f"is {source.ut:g} samples and train.batch is {batch}; ut must hold more than one "
            "batch",
        )


def short_name(source: SourceSpec) -> str:
    return str(source.component).rsplit("/", 1)[-1]
