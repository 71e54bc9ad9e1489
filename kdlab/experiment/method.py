"""Interface of training methods: a folder under kdlab/methods, or a user's package.

An experiment names its method; code outside the method's folder uses this interface only.
`faults` needs the spec alone, `check` data and models; both run before anything starts.
`train` gets a `MemberTraining` and trains one student.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Protocol

from kdlab.changes.change import CONTROL
from kdlab.changes.queue import ChangeQueue
from kdlab.cluster.chaos import Target
from kdlab.cluster.hosted_ranks import DaskHosts
from kdlab.config import Fault
from kdlab.events.event import Emit
from kdlab.experiment.folder import RunFolder
from kdlab.experiment.pools import Pools
from kdlab.experiment.setup import TrainingSetup
from kdlab.experiment.spec import ExperimentSpec, Member, MethodSettings
from kdlab.soft_labels.source import LoadedTeacher, SourceContext, SourceSpec, TeacherPool
from kdlab.train.recipe import Recipe
from kdlab.train.result import MemberResult
from kdlab.train.student import StudentLoop

Victims = Callable[[], list[Target]]  # a member's processes, as targets of chaos
RunChaos = Callable[[TeacherPool | None, Victims], AbstractContextManager[object]]


class Group(Protocol):
    """The ranks of one student."""

    failovers: list[float]  # seconds of each

    def run(self) -> Mapping[str, object]:
        """Train to the end and return a `MemberResult` as plain data."""

    def targets(self) -> list[Target]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberTraining:
    """One training of a run, passed to its method.

    Attributes:
        run, folder: folder of the run, and of this member in it.
        chaos: context manager that executes the spec's chaos; takes the pool and the
            processes that it may hit.
    """

    setup: TrainingSetup  # spec, data, teacher, loops
    member: Member  # its name, soft labels and seed
    run: RunFolder
    folder: Path
    emit: Emit  # events of this member
    pools: Pools  # of teachers, started on first use
    hosts: DaskHosts | None  # Dask workers for ranks; None is this machine
    chaos: RunChaos

    @property
    def spec(self) -> ExperimentSpec:
        return self.setup.spec

    @property
    def changes(self) -> ChangeQueue:
        """Changes that users request of this member during training."""
        return ChangeQueue(self.run.path / CONTROL, self.member.name, self.run.since)

    @property
    def pool(self) -> TeacherPool | None:
        """Pool of complete teachers, if this member's soft labels are served."""
        served = self.member.source.needs_teacher == "served"
        return self.pools.teacher_pool() if served else None

    def train_here(
        self,
        loop: StudentLoop,
        folder: Path,
        source: SourceSpec | None = None,
        load_teacher: Callable[[], LoadedTeacher] | None = None,
    ) -> MemberResult:
        """Run a loop to its end in this process, from the newest checkpoint in `folder`.

        Args:
            loop: from `setup.loop`.
            folder: folder of this loop; below the member's where it has several loops.
            source: source of soft labels; None is the member's.
            load_teacher: loads the teacher for a source in this process; None loads the
                experiment's.
        """
        loop.resume()
        opened = (source or self.member.source).build(
            SourceContext(
                samples=loop.job.samples,
                student=f"{self.run.run_id}/{self.member.name}",
                folder=folder,
                load_teacher=load_teacher or self.setup.load_teacher,
                pool=self.pool,
                report=self.emit,
                stop=self.setup.stop,
                student_rate=loop.measure_rate,
                start=loop.start(),
                outputs=loop.job.outputs,
                on_gpu=loop.device.type == "cuda",
            )
        )
        with closing(opened):
            return loop.run(opened)


class MethodSpec(MethodSettings, ABC):
    """Base of methods: their spec, and how they train a member."""

    files: ClassVar[tuple[str, ...]] = ()  # other files that a member may write

    # Before the start, with data and models

    def check(self, setup: TrainingSetup) -> None:  # optional
        """Check data and models before the start.

        Raises:
            BadInput: lists all faults in one message.
        """

    def prepare(self, training: MemberTraining) -> None:
        """Start what a member needs before its time is measured: its pools."""
        _ = training.pool

    @abstractmethod
    def train(self, training: MemberTraining) -> MemberResult:
        """Train one member from its newest checkpoint to the end.

        Raises:
            RunStopped: the user stopped the run; the state is saved.
            KdlabError: training failed.
        """

    # After training

    def artifacts(self, folder: Path) -> list[str]:
        """Return a member's other files, for MLflow."""
        return [str(folder / name) for name in self.files if (folder / name).is_file()]

    def summarise(self, spec: ExperimentSpec, run: RunFolder) -> list[Path]:
        """Write files that summarise all members of a run, and return their paths."""
        return []


def method_of(spec: ExperimentSpec) -> MethodSpec:
    """Return an experiment's method, typed as `MethodSpec`."""
    assert isinstance(spec.method, MethodSpec)
    return spec.method


def recipe_faults(recipe: Recipe, unused: Mapping[str, str], by: str) -> Iterator[Fault]:
    """Yield a fault for each key of `train` that is set and that a method does not use."""
    defaults = Recipe()
    for name, why in unused.items():
        value = getattr(recipe, name)
        if value != getattr(defaults, name):
            yield Fault(f"train.{name}", f"is {value}, not with {by}: {why}")
