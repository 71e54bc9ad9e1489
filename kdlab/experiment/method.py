"""What every method of training is: a folder under kdlab/methods, or a user's own package.

An experiment names its method; nothing outside the method's folder knows more of it than
stands here. `faults` are found from the spec alone, `check` with data and models at hand,
both before anything starts; `train` is given a `MemberTraining` and makes a student of it.
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

Victims = Callable[[], list[Target]]  # processes of a member that chaos can hit
RunChaos = Callable[[TeacherPool | None, Victims], AbstractContextManager[object]]


class Group(Protocol):
    """The ranks of one student, whoever starts them."""

    failovers: list[float]  # seconds each

    def run(self) -> Mapping[str, object]:
        """Until the end; a `MemberResult` as JSON holds it."""

    def targets(self) -> list[Target]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberTraining:
    """One training of a run, as its method gets it.

    Attributes:
        run, folder: of the run, and of this member in it.
        chaos: the trouble that the spec asks for, while its block goes on; takes the pool
            and the processes that can be hit.
    """

    setup: TrainingSetup  # spec, data, teacher, loops
    member: Member  # what is trained: name, soft labels, seed
    run: RunFolder
    folder: Path
    emit: Emit  # events of this member
    pools: Pools  # of teachers, started when they are asked for
    hosts: DaskHosts | None  # where processes are started; None is this machine
    chaos: RunChaos

    @property
    def spec(self) -> ExperimentSpec:
        return self.setup.spec

    @property
    def changes(self) -> ChangeQueue:
        """What somebody asks of this member while it trains."""
        return ChangeQueue(self.run.path / CONTROL, self.member.name, self.run.since)

    @property
    def pool(self) -> TeacherPool | None:
        """The pool of whole teachers, if this member's soft labels are served."""
        served = self.member.source.needs_teacher == "served"
        return self.pools.whole() if served else None

    def train_here(
        self,
        loop: StudentLoop,
        folder: Path,
        source: SourceSpec | None = None,
        load_teacher: Callable[[], LoadedTeacher] | None = None,
    ) -> MemberResult:
        """A loop to its end in this process, from its newest checkpoint in `folder`.

        Args:
            loop: of `setup.loop`.
            folder: of this loop; one in the member's where it has several.
            source: of soft labels; None is the member's own.
            load_teacher: for a source that asks a teacher in this process; None is the
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
    """A method, as a spec names it."""

    files: ClassVar[tuple[str, ...]] = ()  # that a member may have beside its student

    # With data and models at hand

    def check(self, setup: TrainingSetup) -> None:  # some have nothing to check
        """All that can be wrong before a start.

        Raises:
            BadInput: what, in one message.
        """

    def prepare(self, training: MemberTraining) -> None:
        """What must stand before a member's time counts: its pools."""
        _ = training.pool

    @abstractmethod
    def train(self, training: MemberTraining) -> MemberResult:
        """One member, from its newest checkpoint to its end.

        Raises:
            RunStopped: the user asked to stop; the state is saved.
            KdlabError: as training does.
        """

    # Afterwards

    def artifacts(self, folder: Path) -> list[str]:
        """Files of a member beside its student, for MLflow."""
        return [str(folder / name) for name in self.files if (folder / name).is_file()]

    def summarise(self, spec: ExperimentSpec, run: RunFolder) -> list[Path]:
        """Files over all members of a run."""
        return []


def method_of(spec: ExperimentSpec) -> MethodSpec:
    """An experiment's method, as that which trains."""
    assert isinstance(spec.method, MethodSpec)
    return spec.method


def recipe_faults(recipe: Recipe, unused: Mapping[str, str], by: str) -> Iterator[Fault]:
    """Keys of `train` that a method does not have, each with why, where they are set."""
    plain = Recipe()
    for name, why in unused.items():
        value = getattr(recipe, name)
        if value != getattr(plain, name):
            yield Fault(f"train.{name}", f"is {value}, not with {by}: {why}")
