"""`method: {type: methods/student}`: train one student with a source of soft labels."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

from kdlab.changes.change import RankCount
from kdlab.cluster.group import StudentGroup
from kdlab.cluster.served import Served
from kdlab.codec import from_builtins
from kdlab.config import Fault, register
from kdlab.config.home import find_as
from kdlab.experiment.folder import RunFolder
from kdlab.experiment.groups import rank_group
from kdlab.experiment.method import MemberTraining, MethodSpec
from kdlab.experiment.spec import ExperimentSpec, short_name
from kdlab.papers.edl_dist.generations import Generations
from kdlab.soft_labels.cached import Cached
from kdlab.soft_labels.in_process import InProcess
from kdlab.soft_labels.none import NoTeacher
from kdlab.soft_labels.source import SourceSpec
from kdlab.train.aggregation.all_reduce import AllReduce
from kdlab.train.result import MemberResult


@register("methods/student")
@dataclass(frozen=True, kw_only=True)
class StudentMethod(MethodSpec):
    """Train one student, batch by batch, with soft labels from any source (EDL-Dist).

    inherit: a student of its teacher's family begins with the teacher's tensors of the same name
        and shape, and separable convolutions as the nearest to what they replace.
    """

    one_student: ClassVar[bool] = True

    inherit: bool = False

    @property
    def inherits(self) -> bool:
        return self.inherit

    def faults(self, spec: ExperimentSpec) -> Iterator[Fault]:
        aggregation = spec.aggregation
        if aggregation.joins == "models":
            yield Fault(
                "aggregation",
                f"is {aggregation.component}, which is of several local models; "
                "method: {type: methods/ensemble} trains those",
            )
        smallest = aggregation.smallest_batch
        if smallest is not None and spec.train.batch < smallest:
            yield Fault(
                "train.batch",
                f"is {spec.train.batch}, and {aggregation.component} needs batches of at "
                f"least {smallest}: two samples for each rank",
            )

    def compared(self, spec: ExperimentSpec) -> dict[str, SourceSpec]:
        """Return the soft-label sources to compare, by their short names."""
        configured = {short_name(spec.soft_labels): spec.soft_labels}
        if not spec.compare:
            return configured
        sources: dict[str, SourceSpec] = {
            "none": NoTeacher(),
            "in_process": InProcess(),
            "cached": Cached(),
            "served": spec.soft_labels,
        }
        return {name: (sources | configured)[name] for name in spec.compare}

    def default_source(self, spec: ExperimentSpec) -> SourceSpec:
        """Use a named teacher: in the process, or served where that is compared."""
        if "served" in spec.compare:
            return Served()
        return InProcess() if spec.teachers() else NoTeacher()

    def has_ranks(self, spec: ExperimentSpec) -> bool:
        return spec.aggregation.joins == "ranks"

    def train(self, training: MemberTraining) -> MemberResult:
        setup, folder, pool = training.setup, training.folder, training.pool
        if not self.has_ranks(training.spec):
            with training.chaos(pool, list):
                loop = setup.loop(
                    training.member, folder, training.emit, changes=training.changes
                )
                return training.train_here(loop, folder)
        group = _group(training)
        with training.chaos(pool, group.targets):
            return replace(
                from_builtins(MemberResult, group.run()), failovers=group.failovers
            )


def _group(training: MemberTraining) -> StudentGroup:
    """Return the group of ranks that train one student, each a process."""
    aggregation = training.spec.aggregation
    assert isinstance(aggregation, AllReduce)
    changes = training.changes

    def wanted() -> int | None:
        return changes.poll(now=True).ranks

    machine = Generations(
        wanted=wanted() or ranks_before(training.run) or aggregation.ranks,
        least=aggregation.least,
        replace=aggregation.replace_lost,
        standby=aggregation.standby,
    )
    return rank_group(
        machine,
        training,
        module="kdlab.methods.student.rank",
        pool=training.pool,
        hang_s=aggregation.hang_s,
        wanted=wanted,
    )


def ranks_before(run: RunFolder) -> int | None:
    """Return the ranks asked of a run by an earlier version, which had a file for them."""
    path = run.path / "ranks.json"
    stored = find_as(dict[str, RankCount], path, "Delete it, or ask again.")
    return stored.get("ranks") if stored else None
