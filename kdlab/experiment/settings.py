"""Settings of an experiment besides its parts: tracking, restarts, workers, combination."""

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
    """MLflow tracking of a run.

    experiment: name that groups runs; null is the config's name.
    uri: address of the MLflow store; null is an SQLite file next to the run folders. Write a
        password as <env:KDLAB_NAME> or <secret:NAME>.
    """

    experiment: str | None = None
    uri: str | None = None
    enabled: bool = True

    def cross_faults(self) -> Iterator[Fault]:
        yield from credentials.faults("uri", self.uri)

    def store(self, runs: Path) -> str | None:
        """Return the address of the store for runs in this folder; None if tracking is off."""
        return (self.uri or f"sqlite:///{runs / 'mlflow.db'}") if self.enabled else None


@dataclass(frozen=True, kw_only=True)
class Watchdog(Spec):
    """Automatic restarts of a run whose process is killed from outside.

    It continues from its newest checkpoint, to the same losses; an error that the run itself
    reports ends it.

    most: restarts within the window; 0 leaves it to `kdlab resume`.
    within_s: length of the window in seconds.
    """

    most: Annotated[int, Range(ge=0, le=1000)] = 3
    within_s: Annotated[float, POSITIVE] = 3600.0


@dataclass(frozen=True, kw_only=True)
class Workers(Spec):
    """A Dask cluster whose workers run the ranks of a student.

    The run folder and the data must be at the same paths on all its machines.

    address: address of the scheduler, such as tcp://10.0.0.1:8786 or tls://10.0.0.1:8786.
    tls: certificates; needed for a tls:// address.
    insecure: allow plain TCP, in a network that keeps others out.
    """

    address: str
    tls: Tls | None = None
    insecure: bool = False

    def cross_faults(self) -> Iterator[Fault]:
        yield from address_faults(self.address, self.tls, insecure=self.insecure)

    def certificates(self) -> Files | None:
        return None if self.tls is None else self.tls.files(Path())

    def check(self) -> None:
        """Check that the scheduler answers.

        Raises:
            BadInput: the user has never named this address.
            SchedulerUnreachable: it does not answer.
        """
        require_known("workers", self.address)
        check_address(self.address, tls=self.certificates())


@dataclass(frozen=True, kw_only=True)
class Expected(Spec):
    """Published results of this recipe; for readers only, kdlab does not check them.

    source: paper and table, or repository.
    top1: the student's test accuracy in percent.
    cost: cost of a run.
    differs: by key, why this config differs from its source.
    """

    source: str
    top1: Annotated[float, Range(gt=0, le=100)] | None = None
    cost: str = ""
    differs: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class TeacherCombination(Spec):
    """Combination of several teachers.

    by: mean of their `probabilities` or of their `logits`; `best` takes for each image the answer
        of the teacher that is best at the class that their mean predicts.
    weigh: `cards`: by each teacher's `weight`; `validation`: per class, by its F1 on
        validation images.
    """

    by: CombinedBy = "probabilities"
    weigh: Literal["cards", "validation"] = "cards"

    def cross_faults(self) -> Iterator[Fault]:
        if self.by == "best" and self.weigh == "cards":
            yield Fault(
                "weigh",
                "is cards, and by is best: the teacher of the largest weight would answer all. "
                "Set validation, which weighs per class",
            )
