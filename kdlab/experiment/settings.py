"""What an experiment can be told beside its parts: where it is kept, restarted, run, combined."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from kdlab.cluster.transport.known_schedulers import require_known
from kdlab.cluster.transport.security import Files, Tls, address_faults
from kdlab.cluster.transport.wire import check_address
from kdlab.config import Fault, Range, Spec, credentials
from kdlab.config.spec import POSITIVE
from kdlab.models.ensemble import CombinedBy


@dataclass(frozen=True, kw_only=True)
class Tracking(Spec):
    """Where MLflow keeps the run.

    experiment: runs are grouped under it; null is the config's name.
    uri: of the MLflow store; null is an SQLite file beside the run folders. A password in
        it is named, not written: <env:KDLAB_NAME> or <secret:NAME>.
    """

    experiment: str | None = None
    uri: str | None = None
    enabled: bool = True

    def cross_faults(self) -> Iterator[Fault]:
        yield from credentials.faults("uri", self.uri)

    def store(self, runs: Path) -> str | None:
        """Address of the store for the runs in this folder; None where there is none."""
        return (self.uri or f"sqlite:///{runs / 'mlflow.db'}") if self.enabled else None


@dataclass(frozen=True, kw_only=True)
class Watchdog(Spec):
    """A run's process that is killed from outside starts again by itself.

    It goes on from its newest checkpoint, to the same losses; what a run reports of itself
    ends it.

    most: times within the window; 0 leaves it to `kdlab resume`.
    within_s: seconds of the window.
    """

    most: Annotated[int, Range(ge=0, le=1000)] = 3
    within_s: Annotated[float, POSITIVE] = 3600.0


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
            BadInput: the user has never named it.
            SchedulerUnreachable: it does not.
        """
        require_known("workers", self.address)
        check_address(self.address, tls=self.certificates())


@dataclass(frozen=True, kw_only=True)
class Expected(Spec):
    """What others had with this recipe; for people, nothing is checked by it.

    source: paper and table, or repository.
    top1: percent on test of the student.
    cost: what it takes.
    differs: why, by key, where this config is not as its source has it.
    """

    source: str
    top1: Annotated[float, Range(gt=0, le=100)] | None = None
    cost: str = ""
    differs: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class TeacherCombination(Spec):
    """How several teachers become one.

    by: the mean of their `probabilities`, or of their `logits`; or for each image the answer of
        the one that is `best` at what all together take it for.
    weigh: `cards`: by each teacher's own `weight`; `validation`: class by class, by its F1 on
        validation images.
    """

    by: CombinedBy = "probabilities"
    weigh: Literal["cards", "validation"] = "cards"

    def cross_faults(self) -> Iterator[Fault]:
        if self.by == "best" and self.weigh == "cards":
            yield Fault(
                "weigh",
                "is cards, and by is best: the teacher of the largest weight would answer all. "
                "validation weighs class by class",
            )
