"""The spec of an experiment, as a file under configs/ describes it."""

from abc import ABC
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

from kdlab.changes.tunable import Tunable
from kdlab.cluster.chaos import FROM_OUTSIDE, Chaos
from kdlab.cluster.local_pool import LocalPool
from kdlab.cluster.pool import PoolSpec
from kdlab.config import Fault, Range, Spec
from kdlab.config.check import construct
from kdlab.config.folders import nearest
from kdlab.config.load import from_dict
from kdlab.config.registry import find
from kdlab.data.images import DataSpec
from kdlab.experiment.folder import RunFolder
from kdlab.experiment.settings import (
    Expected,
    TeacherCombination,
    Tracking,
    Watchdog,
    Workers,
)
from kdlab.features.feature_loss import FeatureLossSpec
from kdlab.losses.hinton import Hinton
from kdlab.losses.soft_loss import LossSpec
from kdlab.models.model import ModelSpec
from kdlab.soft_labels.none import NoTeacher
from kdlab.soft_labels.source import SourceSpec
from kdlab.train.aggregation.kind import AggregationSpec
from kdlab.train.aggregation.none import NoAggregation
from kdlab.train.loop_control import in_each_step
from kdlab.train.recipe import Recipe
from kdlab.train.teacher import TeacherSpec

SourceName = Literal["none", "in_process", "cached", "served"]


@dataclass(frozen=True, slots=True)
class Member:
    """One training of a run: a variant that the method compares, with a seed."""

    name: str  # "served/seed0"
    source_name: str  # source, plan or variant that the method compares
    source: SourceSpec
    seed: int


class MethodSettings(Spec, ABC):  # abstract: a config names a method
    """Settings of a method, for its experiment's spec; `MethodSpec` adds the training."""

    needs_teacher: ClassVar[bool] = False  # regardless of the soft labels
    needs_labels: ClassVar[bool] = False  # for each training image
    steers_loss: ClassVar[bool] = True  # loss weights and temperature are tunable
    # A member is one student that learns from the experiment's soft labels: they may be hidden
    # states, their thresholds are tunable, and trials of a sweep share their pool
    one_student: ClassVar[bool] = False

    def faults(self, spec: "ExperimentSpec") -> Iterator[Fault]:
        """Yield faults of an experiment: what this method cannot use, and what it needs."""
        yield from ()

    def compared(self, spec: "ExperimentSpec") -> Mapping[str, SourceSpec]:
        """Return the trainings for each seed: name to source of soft labels."""
        return {short_name(self): spec.soft_labels}

    def default_source(self, spec: "ExperimentSpec") -> SourceSpec:
        """Return the source of soft labels for experiments that name none."""
        return NoTeacher()

    def described(self, names: list[str]) -> str:
        """Return the training that the top-level keys of the result describe."""
        return "served" if "served" in names else names[-1]

    def labelled(self, spec: "ExperimentSpec") -> Recipe:
        """Return the recipe of the training that uses soft labels."""
        return spec.train

    @property
    def inherits(self) -> bool:
        """True where students start with the layers they share with their teacher."""
        return False

    def has_ranks(self, spec: "ExperimentSpec") -> bool:
        """Return whether a member is trained in separate processes."""
        return False

    def tunables(self, spec: "ExperimentSpec", source: SourceSpec) -> list[Tunable]:
        """Return the tunables of a member with these soft labels, with their initial values."""
        taught = source.needs_teacher != "none" and self.steers_loss
        of_loss = in_each_step(spec.loss if taught else None)
        return of_loss + (source.tunables(spec.train.batch) if self.one_student else [])


def short_name(part: Spec) -> str:
    return str(part.component).rsplit("/", 1)[-1]


_UNSET = NoTeacher()  # placeholder: the method chooses the soft labels


def _unmet(key: str, what: str, *needs: tuple[bool, str]) -> Iterator[Fault]:
    """Return a fault for each unmet need: pairs of whether it is unmet, and why it matters."""
    return (Fault(key, f"{what}, and {why}") for lacks, why in needs if lacks)


def _one_student() -> MethodSettings:
    """Return the default method, methods/student."""
    method, _ = find("methods/student")
    settings = method()
    assert isinstance(settings, MethodSettings)
    return settings


@dataclass(frozen=True, kw_only=True)
class ExperimentSpec(Spec):
    """An experiment. `compare` runs it once per named soft-label source.

    expects: published results of this recipe.
    teacher: one, or several that `combine` combines. A model without weights is trained on
        `data` as `train` says.
    features: losses between inner outputs of teacher and student, in addition to that of their
        logits; with several teachers, each names its teacher (`of`).
    soft_labels: by default, a teacher that is set runs in the student's process.
    teacher_pool: pool for served soft labels; null is teachers on this machine
        (cluster/local_pool).
    workers: Dask cluster for the ranks of a student; null is this machine.
    """

    about: str = ""
    expects: Expected | None = None
    method: MethodSettings = field(default_factory=_one_student)
    data: DataSpec
    teacher: TeacherSpec | tuple[TeacherSpec, ...] | None = None
    combine: TeacherCombination = field(default_factory=TeacherCombination)
    teacher_pool: PoolSpec | None = None
    student: ModelSpec
    loss: LossSpec = field(default_factory=Hinton)
    features: tuple[FeatureLossSpec, ...] = ()
    soft_labels: SourceSpec = field(default_factory=lambda: _UNSET)
    aggregation: AggregationSpec = field(default_factory=NoAggregation)
    train: Recipe = field(default_factory=Recipe)
    seeds: tuple[Annotated[int, Range(ge=0)], ...] = (0,)
    compare: tuple[SourceName, ...] = ()
    tracking: Tracking = field(default_factory=Tracking)
    chaos: Chaos | None = None
    workers: Workers | None = None
    restart: Watchdog = field(default_factory=Watchdog)

    def __post_init__(self) -> None:
        self._set("data", self.data.shown_as(self.student.evaluation))
        specs = tuple(one.in_experiment(self.data, self.train) for one in self.teachers())
        if specs:
            self._set("teacher", specs if isinstance(self.teacher, tuple) else specs[0])
        if self.soft_labels is _UNSET:
            self._set("soft_labels", self.method.default_source(self))
        if self.teacher_pool is None and self._needs_pool():
            self._set("teacher_pool", LocalPool())
        super().__post_init__()

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)  # frozen after __post_init__

    def _needs_pool(self) -> bool:
        sources = (self.soft_labels, *self.sources().values())
        return any(source.needs_teacher == "served" for source in sources)

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
        trainer = self.student.trained_by
        if trainer is not None and self.method.component != trainer:
            message = f"is {self.student.component}, which only {trainer} can train"
            yield Fault("student", f"{message}; method is {self.method.component}")
        taught = [m.source for m in self.members() if m.source.needs_teacher != "none"]
        if taught and not self.teachers() and not self.method.needs_teacher:
            yield Fault("teacher", f"is missing; {taught[0].component} needs one")
        if self.combine != TeacherCombination() and len(self.teachers()) < 2:
            yield Fault(
                "combine", f"needs several teachers, and there are {len(self.teachers())}"
            )
        batch = self.method.labelled(self).batch
        for fault in (
            *self.soft_labels.batch_faults(batch),
            *self.soft_labels.loss_faults(self.loss.against_draws()),
        ):
            yield fault.under("soft_labels")
        for source in self.sources().values() if self.features else ():
            for fault in source.feature_faults():
                yield fault.under("soft_labels")
        yield from self._missing_parts()
        yield from self.method.faults(self)
        yield from self._chaos_faults()

    def _missing_parts(self) -> Iterator[Fault]:
        """Yield faults where one part of the experiment needs another that is missing."""
        method, recipe, hidden = self.method, self.train, self.soft_labels.gives_hidden
        sources, count = [member.source for member in self.members()], len(self.teachers())
        hidden_needs = (
            (not method.one_student, f"{method.component} uses logits only"),
            (self.workers is not None, "ranks on workers do not have the teacher"),
        )
        if self.compare:
            compares_nothing = type(method).compared is MethodSettings.compared
            why = f"{method.component} learns from one; it compares method.compare, if any"
            one_source = (not method.one_student or compares_nothing, why)
            yield from _unmet("compare", "lists soft labels", one_source)
        if hidden:
            one_teacher = (count > 1, f"there are {count} teachers")
            yield from _unmet("soft_labels.sends", "is hidden", *hidden_needs, one_teacher)
        if self.features:
            taught = any(source.needs_teacher != "none" for source in sources)
            yield from _unmet(
                "features",
                "is set",
                *hidden_needs,
                (not taught, "no training has a teacher"),
                (recipe.compile, "train.compile hides inner outputs"),
                (hidden, "soft_labels.sends is hidden"),
            )
            yield from self._owner_faults()
        yield from self._headless_faults()
        caches = [source.component for source in sources if source.keeps_labels]
        if self.data.sampling.active and caches:
            yield Fault(
                "data.sampling",
                "shows images several times in an epoch, each time another view, and "
                f"{caches[0]} stores soft labels of one view an epoch",
            )
        if recipe.schedule == "plateau" and method.has_ranks(self):
            yield Fault(
                "train.schedule",
                "is plateau, which needs validation after each epoch, and only a student in one "
                "process has that. step drops at given epochs",
            )
        batch_norm = getattr(self.aggregation, "batch_norm", "sync")
        if recipe.ema is not None and batch_norm == "local":
            yield Fault(
                "train.ema",
                "is set, and aggregation.batch_norm is local: the mean would have the "
                "statistics of one rank",
            )
        if self.workers is not None:
            yield from _unmet("workers", "is set", self._needs_ranks())

    def _headless_faults(self) -> Iterator[Fault]:
        """Yield faults of headless teachers: without a feature loss, or asked for logits."""
        teachers = self.teachers()
        headless = [teacher.called for teacher in teachers if teacher.headless]
        used = {loss.of or one.called for loss in self.features for one in teachers[:1]}
        for name in headless:
            if name not in used:
                message = f"has {name}, which is headless, and no loss in features names it"
                yield Fault("teacher", message)
        if headless and len(headless) == len(teachers) and self.loss.soft_weight:
            message = (
                f"is {self.loss.soft_weight:g}, and no teacher has classes; 0 learns from"
            )
            yield Fault("loss.soft_weight", f"{message} features alone")

    def _owner_faults(self) -> Iterator[Fault]:
        """Yield faults of `features` that do not name one teacher."""
        names = [teacher.called for teacher in self.teachers()]
        for name in dict.fromkeys(n for n in names if names.count(n) > 1):
            message = f"has {names.count(name)} called {name!r}; give each its own name"
            yield Fault("teacher", f"{message} (name: ...), by which features refer to it")
        for number, loss in enumerate(self.features if names else ()):
            if loss.of is None and len(names) > 1:
                why = f"is missing, and there are {len(names)} teachers: {', '.join(names)}"
                yield Fault(f"features.{number}.of", why)
            elif loss.of is not None and loss.of not in names:
                message = f"is {loss.of!r}, and no teacher has this name."
                yield Fault(f"features.{number}.of", message + nearest(loss.of, names))

    def _needs_ranks(self) -> tuple[bool, str]:
        return not self.method.has_ranks(self), (
            "one student in one process has no ranks; "
            "aggregation.type=train/aggregation/all_reduce"
        )

    def _chaos_faults(self) -> Iterator[Fault]:
        if self.chaos is None:
            return
        kinds = [kind for kind, weight in self.chaos.weights().items() if weight > 0]
        pool, words = self.teacher_pool, f"asks for {', '.join(kinds)}"
        if any(kind.endswith("teacher") for kind in kinds):
            why = "chaos can hit only teachers on this machine; use: teacher_pools/local"
            yield from _unmet(
                "chaos", words, (pool is None or not pool.local_teachers().most, why)
            )
        if any(kind.endswith("rank") for kind in kinds):
            message = "chaos cannot hit ranks on Dask workers, only those of this machine"
            yield from _unmet(
                "chaos", words, self._needs_ranks(), (self.workers is not None, message)
            )
        for kind in {"partition_teacher", "delay_teacher"} & {*kinds}:
            if pool and pool.local_teachers().most and not getattr(pool, "chaos", False):
                yield Fault("teacher_pool.chaos", f"is false; {kind} needs it true")
        if external := [kind for kind in kinds if kind in FROM_OUTSIDE]:
            yield Fault(
                "chaos",
                f"asks for {', '.join(external)}, which would end or stop the run that "
                "executes it. From outside: kdlab chaos RUN "
                f"{external[0]}=1",
            )

    def teachers(self) -> tuple[TeacherSpec, ...]:
        """Return the teachers: none, one, or the members of an ensemble."""
        if self.teacher is None:
            return ()
        return self.teacher if isinstance(self.teacher, tuple) else (self.teacher,)

    def sources(self) -> dict[str, SourceSpec]:
        """Return the trainings for each seed: name to source of soft labels."""
        return dict(self.method.compared(self))

    def described(self) -> str:
        """Return the source that the top-level keys of the result describe."""
        return self.method.described(list(self.sources()))

    def members(self) -> list[Member]:
        """Return all trainings, seed by seed: the first comparison is complete early."""
        return [
            Member(f"{name}/seed{seed}", name, source, seed)
            for seed in self.seeds
            for name, source in self.sources().items()
        ]


def spec_of(run: RunFolder) -> ExperimentSpec:
    """Read the spec of a run folder.

    Raises:
        BadInput: a version of kdlab with another format wrote it.
        SpecError: it has components unknown to this process, such as those of a notebook cell.
    """
    run.check_format()
    return construct(ExperimentSpec, from_dict(run.resolved(), run.run_id))
