"""Messages of teachers, readers and runs to the coordinator, and its answers.

Each is a dataclass on both sides and JSON between. Facts that a teacher did not report are
left out of the JSON, so that rows and events show only known facts.
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
    """The fields of a `Deployment` that the coordinator reads, which loads no model."""

    fingerprint: str
    by_reference: bool = False
    num_classes: int = 0
    batch: int = 0
    reference: tuple[tuple[float, ...], ...] = ()

    def lacks(self, wanted: "Deployed") -> str:
        """Why a student of the same models and data cannot use this pool; empty where it can."""
        if self.by_reference or not wanted.by_reference:
            return ""
        return (
            "its teachers were started for a student that sends pixels and have loaded no "
            "data; set soft_labels.inputs=value_uint8, or use another pool"
        )


def serves_others(students: Iterable[str]) -> str:
    """Message that a pool cannot serve another model or other data now."""
    return (
        f"the pool still serves {', '.join(students)} with another model or other data; wait "
        "for it, or use another pool"
    )


def sanitized(info: TeacherInfo) -> TeacherInfo:
    """Set a teacher's share of the data to 0 where it is not between 0 and 1."""
    share = info.here
    return info if math.isfinite(share) and 0 <= share <= 1 else replace(info, here=0.0)


def finite_amount(value: float) -> float:
    """Replace a number that is not finite or below 0 by 0: students may send anything."""
    return float(value) if math.isfinite(value) and value > 0 else 0.0


@dataclass(frozen=True, slots=True)
class Welcome:
    """Answer to a teacher that registers: what to load, and how often to renew its lease."""

    deployment: Mapping[str, object] | None
    renew_s: float


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a teacher may not serve."""

    refused: str
    retry_s: float | None = None  # after which it may try again; None: never
    load: bool = False  # the pool serves something else now: load it


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsSource:
    """Where a teacher gets weights: exactly one of these."""

    peer: tuple[str, int] | None = None  # address and port of a teacher that has them
    size: int | None = None  # bytes, from the coordinator
    wait_s: float | None = None  # the coordinator is busy: ask again after this time


# Of readers


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolUpdate(Delta):
    """Changes for a student; an empty answer asks it to send its demand again."""

    incarnation: str  # of the coordinator that counts `version`


# Of observers


@dataclass(frozen=True, slots=True)
class StudentStatus:
    t_s: float
    rate: float
    searching: bool
    # Of its reader, as last reported.
    figures: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TeacherStatus:
    """State of a teacher at the coordinator, with the facts that it reports about itself."""

    address: str
    state: LeaseState
    shares: Mapping[str, float]  # by student: the part of it that they hold, up to 1
    t_t: float
    silent_s: float
    facts: TeacherInfo | None = None

    @classmethod
    def from_row(cls, row: SharedTeacher, now: float) -> "TeacherStatus":
        shares = {student: share.part for student, share in row.shares.items()}
        silent_s = now - row.renewed_at
        return cls(row.teacher, row.state, shares, row.t_t, silent_s, row.info)

    def to_json(self) -> dict[str, object]:
        status: dict[str, object] = to_builtins(self)
        status.pop("facts")
        return status | ({} if self.facts is None else to_dict(self.facts))


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolStatus:
    """State of a pool: its deployment, students and teachers."""

    deployed: str
    expired: int
    renewals: int
    students: Mapping[str, StudentStatus]
    teachers: tuple[TeacherStatus, ...]

    @property
    def ready(self) -> list[TeacherStatus]:
        """Teachers that serve, or could."""
        return [t for t in self.teachers if t.state != "registered"]

    @property
    def missing(self) -> float:
        """Samples/s that students ask for and do not get."""
        waiting = (s for s in self.students.values() if s.searching)
        return sum(max(0.0, s.t_s - s.rate) for s in waiting)
