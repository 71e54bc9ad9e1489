"""The whole experiment as one spec: what a file under configs/ describes."""

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
    """One training of a run: one of those that the method compares, with a seed."""

    name: str  # "served/seed0"
    source_name: str  # what the method compares: a source, a plan, a variant
    source: SourceSpec
    seed: int


class MethodSettings(Spec, ABC):  # a kind of components: one must be named
    """A method as its experiment's spec knows it; `MethodSpec` can train, too."""

    needs_teacher: ClassVar[bool] = False  # whatever the soft labels need
    needs_labels: ClassVar[bool] = False  # of every training image
    steers_loss: ClassVar[bool] = True  # its weights and temperature, while it trains
    # A member is one student that learns from the experiment's soft labels: these may be hidden
    # states, their thresholds move while it trains, and trials of a sweep share their pool
    one_student: ClassVar[bool] = False

    def faults(self, spec: "ExperimentSpec") -> Iterator[Fault]:
        """What the experiment around this method has that it cannot use, or lacks."""
        yield from ()

    def compared(self, spec: "ExperimentSpec") -> Mapping[str, SourceSpec]:
        """What is trained for each seed: by name, where its soft labels come from."""
        return {short_name(self): spec.soft_labels}

    def default_source(self, spec: "ExperimentSpec") -> SourceSpec:
        """Where soft labels come from if the experiment does not say it."""
        return NoTeacher()

    def described(self, names: list[str]) -> str:
        """Name of the one that the top-level keys of the result describe."""
        return "served" if "served" in names else names[-1]

    def labelled(self, spec: "ExperimentSpec") -> Recipe:
        """The training that soft labels are for."""
        return spec.train

    @property
    def inherits(self) -> bool:
        """Whether `TrainingSetup.loop` has a student begin with what it shares with its teacher."""
        return False

    def has_ranks(self, spec: "ExperimentSpec") -> bool:
        """Whether a member is trained in processes of its own."""
        return False

    def tunables(self, spec: "ExperimentSpec", source: SourceSpec) -> list[Tunable]:
        """What can be set while a member with these soft labels trains; as it is at the start."""
        taught = source.needs_teacher != "none" and self.steers_loss
        found = in_each_step(spec.loss if taught else None)
        return found + (source.tunables(spec.train.batch) if self.one_student else [])


def short_name(part: Spec) -> str:
    return str(part.component).rsplit("/", 1)[-1]


_UNSAID = NoTeacher()  # stands where nothing is said of soft labels: the method says it


def _lacks(key: str, what: str, *needs: tuple[bool, str]) -> Iterator[Fault]:
    """A fault for each need that is not met: whether it lacks, and what it means."""
    return (Fault(key, f"{what}, and {why}") for lacks, why in needs if lacks)


def _one_student() -> MethodSettings:
    """The method of an experiment that names none: found by its name, as any other is."""
    method, _ = find("methods/student")
    found = method()
    assert isinstance(found, MethodSettings)
    return found


@dataclass(frozen=True, kw_only=True)
class ExperimentSpec(Spec):
    """An experiment. `compare` runs it once per named soft-label source.

    expects: what others had with it.
    teacher: one, or several that `combine` makes one. A model alone is trained on
        `data` as `train` says.
    features: losses between inner outputs of teacher and student, beside that of their logits;
        of several teachers each says whose (`of`).
    soft_labels: where nothing is said, a teacher that is named is asked in the student's process.
    teacher_pool: of served soft labels; null is teachers on this machine (cluster/local_pool).
    workers: of a Dask cluster, where a student with several ranks is trained; null is this
        machine.
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
    soft_labels: SourceSpec = field(default_factory=lambda: _UNSAID)
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
        made = tuple(one.in_experiment(self.data, self.train) for one in self.teachers())
        if made:
            self._set("teacher", made if isinstance(self.teacher, tuple) else made[0])
        if self.soft_labels is _UNSAID:
            self._set("soft_labels", self.method.default_source(self))
        if self.teacher_pool is None and self._asks_a_pool():
            self._set("teacher_pool", LocalPool())
        super().__post_init__()

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)  # frozen once it is made

    def _asks_a_pool(self) -> bool:
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
        only = self.student.trained_by
        if only is not None and self.method.component != only:
            has = f"is {self.student.component}, which {only} alone can train"
            yield Fault("student", f"{has}; method is {self.method.component}")
        taught = [m.source for m in self.members() if m.source.needs_teacher != "none"]
        if taught and not self.teachers() and not self.method.needs_teacher:
            yield Fault("teacher", f"is missing; {taught[0].component} needs one")
        if self.combine != TeacherCombination() and len(self.teachers()) < 2:
            yield Fault(
                "combine", f"is of several teachers, and there are {len(self.teachers())}"
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
        yield from self._lacking()
        yield from self.method.faults(self)
        yield from self._chaos_faults()

    def _lacking(self) -> Iterator[Fault]:
        """Where a part of the experiment needs something of another that is not there."""
        by, recipe, hidden = self.method, self.train, self.soft_labels.gives_hidden
        sources, count = [member.source for member in self.members()], len(self.teachers())
        of_hidden = (
            (not by.one_student, f"{by.component} takes logits alone"),
            (self.workers is not None, "ranks on workers do not have the teacher"),
        )
        if self.compare:
            silent = type(by).compared is MethodSettings.compared
            own = f"{by.component} learns one alone; what it compares is method.compare, if any"
            discard_event = (not by.one_student or silent, own)
            yield from _lacks("compare", "is of soft labels", discard_event)
        if hidden:
            many = (count > 1, f"there are {count} teachers: whose?")
            yield from _lacks("soft_labels.sends", "is hidden", *of_hidden, many)
        if self.features:
            taught = any(source.needs_teacher != "none" for source in sources)
            yield from _lacks(
                "features",
                "is set",
                *of_hidden,
                (not taught, "nobody has a teacher here"),
                (recipe.compile, "train.compile leaves no way to inner outputs"),
                (hidden, "soft_labels.sends is hidden"),
            )
            yield from self._nameless()
        yield from self._headless()
        keeping = [source.component for source in sources if source.keeps_labels]
        if self.data.sampling.active and keeping:
            yield Fault(
                "data.sampling",
                "shows images several times in an epoch, each with a view of its own, and "
                f"{keeping[0]} keeps soft labels of one view an epoch",
            )
        if recipe.schedule == "plateau" and by.has_ranks(self):
            yield Fault(
                "train.schedule",
                "is plateau, and only a student in one process is validated after each epoch. "
                "step drops at given epochs",
            )
        norms = getattr(self.aggregation, "batch_norm", "sync")
        if recipe.ema is not None and norms == "local":
            yield Fault(
                "train.ema",
                "is set, and aggregation.batch_norm is local: the mean would have one rank's "
                "statistics",
            )
        if self.workers is not None:
            yield from _lacks("workers", "is set", self._no_ranks())

    def _headless(self) -> Iterator[Fault]:
        """Where teachers that know no classes are asked for logits, or for nothing."""
        every = self.teachers()
        without = [one.called for one in every if one.headless]
        said = {loss.of or one.called for loss in self.features for one in every[:1]}
        for name in without:
            if name not in said:
                has = f"has {name}, which is headless, and no loss of features is of it"
                yield Fault("teacher", has)
        if without and len(without) == len(every) and self.loss.soft_weight:
            weight = (
                f"is {self.loss.soft_weight:g}, and no teacher knows classes; 0 learns from"
            )
            yield Fault("loss.soft_weight", f"{weight} features alone")

    def _nameless(self) -> Iterator[Fault]:
        """Where `features` do not say plainly whose they are."""
        names = [teacher.called for teacher in self.teachers()]
        for name in dict.fromkeys(n for n in names if names.count(n) > 1):
            several = (
                f"has {names.count(name)} called {name!r}; give each a name of its own"
            )
            yield Fault(
                "teacher", f"{several} (name: ...): features say by it whose they are"
            )
        for number, loss in enumerate(self.features if names else ()):
            if loss.of is None and len(names) > 1:
                say = f"is missing, and there are {len(names)} teachers: {', '.join(names)}"
                yield Fault(f"features.{number}.of", say)
            elif loss.of is not None and loss.of not in names:
                has = f"is {loss.of!r}, and no teacher is called so."
                yield Fault(f"features.{number}.of", has + nearest(loss.of, names))

    def _no_ranks(self) -> tuple[bool, str]:
        return not self.method.has_ranks(self), (
            "one student in one process has no ranks; "
            "aggregation.type=train/aggregation/all_reduce"
        )

    def _chaos_faults(self) -> Iterator[Fault]:
        if self.chaos is None:
            return
        asked = [kind for kind, weight in self.chaos.weights().items() if weight > 0]
        pool, what = self.teacher_pool, f"asks for {', '.join(asked)}"
        if any(kind.endswith("teacher") for kind in asked):
            why = "only teachers on this machine can be hit; use: teacher_pools/local"
            yield from _lacks(
                "chaos", what, (pool is None or not pool.local_teachers().most, why)
            )
        if any(kind.endswith("rank") for kind in asked):
            away = "ranks on Dask workers cannot be hit from here; only those of this machine can"
            yield from _lacks(
                "chaos", what, self._no_ranks(), (self.workers is not None, away)
            )
        for kind in {"partition_teacher", "delay_teacher"} & {*asked}:
            if pool and pool.local_teachers().most and not getattr(pool, "chaos", False):
                yield Fault("teacher_pool.chaos", f"is false; {kind} needs it true")
        if outside := [kind for kind in asked if kind in FROM_OUTSIDE]:
            yield Fault(
                "chaos",
                f"asks for {', '.join(outside)}, which would end or stop whoever carries it "
                "out: the run itself. From outside: kdlab chaos RUN "
                f"{outside[0]}=1",
            )

    def teachers(self) -> tuple[TeacherSpec, ...]:
        """None, one, or the members of an ensemble."""
        if self.teacher is None:
            return ()
        return self.teacher if isinstance(self.teacher, tuple) else (self.teacher,)

    def sources(self) -> dict[str, SourceSpec]:
        """What is trained for each seed, by name, and where its soft labels come from."""
        return dict(self.method.compared(self))

    def described(self) -> str:
        """Name of the source that the top-level keys of the result describe."""
        return self.method.described(list(self.sources()))

    def members(self) -> list[Member]:
        """Seed by seed, so that the first rows of a comparison come early."""
        return [
            Member(f"{name}/seed{seed}", name, source, seed)
            for seed in self.seeds
            for name, source in self.sources().items()
        ]


def spec_of(run: RunFolder) -> ExperimentSpec:
    """The spec in a run's folder.

    Raises:
        BadInput: another version of kdlab wrote it.
        SpecError: it has components that are not known here, such as those of a notebook cell.
    """
    run.check_format()
    return construct(ExperimentSpec, from_dict(run.resolved(), run.run_id))
