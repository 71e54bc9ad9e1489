"""What teachers, readers and runs tell the coordinator, and what it answers.

Each is a dataclass on both sides and JSON between. Facts that a teacher did not tell are
left out there, so that rows and events show what is known.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from kdlab.codec import to_builtins, to_dict
from kdlab.papers.edl_dist.fair_shares import LeaseState, SharedTeacher
from kdlab.papers.edl_dist.leases import Delta
from kdlab.papers.edl_dist.teacher_info import TeacherInfo

# Of teachers


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployed:
    """What is read of a `Deployment` where its models are not loaded."""

    fingerprint: str
    by_reference: bool = False
    num_classes: int = 0
    batch: int = 0
    reference: tuple[tuple[float, ...], ...] = ()

    def lacks(self, wanted: "Deployed") -> str:
        """Why a student of the same models and data cannot use it; empty where it can."""
        if self.by_reference or not wanted.by_reference:
            return ""
        return (
            "its teachers were started for a student that sends pixels and have loaded no "
            "data; use soft_labels.inputs=value_uint8, or another pool"
        )


def serves_others(students: Iterable[str]) -> str:
    """Why a pool cannot serve another model or other data now."""
    return (
        f"the pool still serves {', '.join(students)} with another model or other data; wait "
        "for it, or use another pool"
    )


def believed(info: TeacherInfo) -> TeacherInfo:
    """A share from 0 to 1; anything else a teacher says is 0."""
    here = info.here
    return info if math.isfinite(here) and 0 <= here <= 1 else replace(info, here=0.0)


def amount(value: float) -> float:
    """A finite number, at least 0: what a student says is not believed blindly."""
    return float(value) if math.isfinite(value) and value > 0 else 0.0


@dataclass(frozen=True, slots=True)
class Welcome:
    """To a teacher that registers: what to load, and how often to renew its lease."""

    deployment: Mapping[str, object] | None
    renew_s: float


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a teacher may not serve."""

    refused: str
    retry_s: float | None = None  # after which it may ask again; None is never
    load: bool = False  # what the pool serves by now


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsSource:
    """Where a teacher gets weights: one of these."""

    peer: tuple[str, int] | None = None  # address and port of a teacher that has them
    size: int | None = None  # bytes that lie at the coordinator
    wait_s: float | None = None  # it is busy; ask again after so long


# Of readers


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolUpdate(Delta):
    """What changed for a student; an empty answer says that its demand is to be said again."""

    incarnation: str  # of the coordinator: what `version` counts for


# Of whoever looks


@dataclass(frozen=True, slots=True)
class StudentStatus:
    t_s: float
    rate: float
    searching: bool
    # Of its reader, as last said.
    figures: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TeacherStatus:
    """A teacher as it is seen from outside; what it says of itself stands beside the rest."""

    address: str
    state: LeaseState
    shares: Mapping[str, float]  # by student: the part of it that is theirs, up to 1
    t_t: float
    silent_s: float
    facts: TeacherInfo | None = None

    @classmethod
    def of(cls, row: SharedTeacher, now: float) -> "TeacherStatus":
        shares = {student: share.part for student, share in row.shares.items()}
        silent_s = now - row.renewed_at
        return cls(row.teacher, row.state, shares, row.t_t, silent_s, row.info)

    def said(self) -> dict[str, object]:
        own: dict[str, object] = to_builtins(self)
        own.pop("facts")
        return own | ({} if self.facts is None else to_dict(self.facts))


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolStatus:
    """All there is to see of a pool."""

    deployed: str
    expired: int
    renewals: int
    students: Mapping[str, StudentStatus]
    teachers: tuple[TeacherStatus, ...]

    @property
    def ready(self) -> list[TeacherStatus]:
        """Those that serve, or could."""
        return [t for t in self.teachers if t.state != "registered"]

    @property
    def missing(self) -> float:
        """Samples/s that students ask for and do not have."""
        waiting = (s for s in self.students.values() if s.searching)
        return sum(max(0.0, s.t_s - s.rate) for s in waiting)
