"""Fair shares of teachers for several students, where teachers fall short or divide unevenly.

Beyond the paper, which has several students and does not say which comes first. Max-min fair: the
student that is covered least gets from the one that is covered most, until both are covered alike.
A teacher may serve several students at once, each with a share of its rate: three teachers make
four equal shares, and one quick teacher serves two students beside slow ones. Whole teachers move
where that suffices, since each further student asks a teacher for small parts.

Pure functions of the rows; the table (leases.py) carries out the grants.
"""

from collections.abc import Collection
from dataclasses import dataclass, field
from math import inf
from typing import Literal, NamedTuple

from kdlab.papers.edl_dist.assignment import nearest, next_teacher
from kdlab.papers.edl_dist.teacher_info import TeacherInfo

LeaseState = Literal["registered", "free", "assigned", "draining"]

CRUMB = 0.02  # of a teacher: no share is smaller
_WORTH = 0.025  # of a need: a smaller change is not worth it
_CLEARLY = 1.25  # times as well covered: rates are guesses, so less moves no whole share
_LEFT = 0.1  # of its teachers, that a student keeps where another's floor is filled


@dataclass(slots=True)
class Share:
    """The share of a teacher that one student holds."""

    epoch: int  # of the lease
    part: float  # of the teacher's rate, from CRUMB to 1


@dataclass(frozen=True, slots=True)
class Lease:
    """A teacher as its student sees it, with the student's share of the rate."""

    teacher: str  # address
    epoch: int
    t_t: float  # samples/s: the student's share
    state: LeaseState
    share: float = 1.0  # of the teacher; always 1 in the paper
    info: TeacherInfo | None = None


@dataclass(slots=True)
class SharedTeacher:
    """A row of the coordinator's table: a teacher and the students that share it."""

    teacher: str  # address
    state: LeaseState
    renewed_at: float  # seconds, of the last heartbeat (3.1)
    ttl_s: float  # 3.1: without a heartbeat for longer, it is unavailable
    t_t: float = 0.0  # samples/s (3.2), measured by the teacher itself
    shares: dict[str, Share] = field(default_factory=dict)  # by student
    info: TeacherInfo | None = None  # stated by the teacher, once it is ready

    @property
    def rest(self) -> float:
        """Share that no student holds, 0 to 1."""
        left = 1.0 - sum(share.part for share in self.shares.values())
        return left if left >= CRUMB else 0.0

    def lease(self, student: str) -> Lease:
        """The lease of a student on this teacher."""
        share = self.shares[student]
        part = share.part if share.part < 1 - CRUMB else 1.0
        rate = part * self.t_t
        return Lease(self.teacher, share.epoch, rate, self.state, part, self.info)

    def rate_of(self, student: str) -> float:
        """Samples/s of this student's share."""
        share = self.shares.get(student)
        return 0.0 if share is None else share.part * self.t_t


@dataclass(slots=True)
class Demand:
    """The demand of one student; it is searching while its teachers fall short."""

    student: str
    # Samples/s to be covered by teachers (3.2): the need, or a bit more when it asks
    t_s: float
    at_most: int | None = None  # teachers
    since: float = 0.0  # seconds, when its search began
    priority: float = 1.0  # a share of teachers in proportion, when they fall short
    floor: int = 0  # teachers' worth that is not taken away for others
    need: float = 0.0  # samples/s, as reported last
    all_rate: float = inf  # samples/s of all teachers, whichever student holds them
    asked_at: float = -inf  # seconds, of the last request for one more (line 8)
    rate: float = 0.0  # samples/s of the teachers it holds
    held: dict[str, SharedTeacher] = field(default_factory=dict)

    @property
    def weight(self) -> float:
        """The need times the priority: students covered alike have teachers in proportion to it.

        Capped by the rate of all teachers: a student that overstates its need before it has
        trained takes no more from others than one that needs just all of them.
        """
        return min(self.need, self.all_rate) * self.priority

    @property
    def cover(self) -> float:
        """Covered share of `weight`."""
        return self.rate / self.weight if self.weight > 0 else inf

    @property
    def is_short(self) -> bool:
        return self.t_s - self.rate > 1e-9 * self.t_s

    @property
    def is_full(self) -> bool:
        """True where it may hold no further teacher; its shares may still grow."""
        return self.at_most is not None and len(self.held) >= self.at_most

    @property
    def lacks(self) -> float:
        """Samples/s that it needs and does not have; below 0 where it has more."""
        return self.need - self.rate

    @property
    def searching(self) -> bool:  # 3.4: a new teacher goes to such a student
        return self.is_short and not self.is_full

    @property
    def teachers(self) -> float:
        """Number of teachers that its shares add up to."""
        return sum(row.shares[self.student].part for row in self.held.values())

    def may_hold(self, row: SharedTeacher) -> bool:
        return not self.is_full or row.teacher in self.held


class Grant(NamedTuple):
    """A part of a teacher for a student, from another student or from the free rest."""

    row: SharedTeacher
    part: float  # of the teacher's rate
    to: Demand
    by: Demand | None = None  # the student that gives it up; None: it was free


def next_grant(
    rows: Collection[SharedTeacher], demands: Collection[Demand]
) -> Grant | None:
    """Choose the next grant (3.4: an available teacher goes to a student that is searching)."""
    for poor in poorest(demands):
        grant = grant_free(rows, poor, poor.t_s - poor.rate) or grant_held(demands, poor)
        if grant is not None:
            return grant
    return None


def grant_free(
    rows: Collection[SharedTeacher], demand: Demand, missing: float
) -> Grant | None:
    """Grant a free teacher, or all that other students leave of one."""
    # 3.4: the replacement is a teacher "that is not scheduled to any Student resource"
    free = {row.teacher: row for row in rows if row.rest}
    rates = {name: row.rest * row.t_t for name, row in free.items()}
    among = {name: rate for name, rate in rates.items() if name in demand.held}
    if not among and not demand.is_full:
        local_shares = {
            n: 1.0 if row.info is None else row.info.here for n, row in free.items()
        }
        among = dict(nearest(rates, local_shares))
    teacher = next_teacher(among, missing)
    return None if teacher is None else Grant(free[teacher], free[teacher].rest, demand)


def poorest(demands: Collection[Demand]) -> list[Demand]:
    """Sort the students that fall short: first those below their floor, then the least covered."""
    short = sorted(
        (d for d in demands if d.is_short), key=lambda d: (d.cover, d.since, d.student)
    )
    promised = [d for d in short if d.floor and d.teachers < d.floor - CRUMB]
    return [*promised, *(d for d in short if d not in promised)]


def grant_held(demands: Collection[Demand], poor: Demand) -> Grant | None:
    """Grant a part of what a better covered student holds."""
    if poor.lacks <= 1e-9 * poor.need:
        return None
    for rich in sorted(demands, key=lambda d: d.lacks / d.need if d.need else -inf):
        if rich is poor or not rich.rate:
            continue
        samples = _samples_to_move(rich, poor)
        if samples > 0 and (move := _choose_grant(rich, poor, samples)) is not None:
            return move
    return None


def _samples_to_move(rich: Demand, poor: Demand) -> float:
    """Samples/s to move until both are covered alike, or the floor of `poor` is reached."""
    missing = poor.floor - poor.teachers
    if poor.floor and missing > 0 and rich.teachers > rich.floor + CRUMB:
        per_teacher = rich.rate / rich.teachers
        most = min(rich.teachers - rich.floor, (1 - _LEFT) * rich.teachers)
        return min(min(missing, most) * per_teacher, poor.lacks)
    both, needs = rich.rate + poor.rate, rich.need + poor.need
    if both >= needs:  # enough for both, whatever their priorities
        samples = rich.rate - rich.need * both / needs
    elif rich.teachers <= rich.floor + CRUMB and (
        poor.teachers >= min(poor.floor, rich.teachers)
    ):
        samples = -rich.lacks  # it keeps its floor, as far as it needs it
    else:
        alike = rich.rate - rich.weight * both / (rich.weight + poor.weight)
        samples = max(alike, -rich.lacks)
    least = _WORTH * min(rich.need, poor.need, rich.rate)
    return samples if samples > least else 0.0


def _choose_grant(rich: Demand, poor: Demand, samples: float) -> Grant | None:
    """Choose a teacher that both hold, or a whole share; else a share of the quickest."""
    both = [row for name, row in rich.held.items() if name in poor.held]
    if both:
        row = max(both, key=lambda row: (row.rate_of(rich.student), row.teacher))
        return _cut(row, rich, poor, samples)
    others = [row for row in rich.held.values() if poor.may_hold(row)]
    fits = [row for row in others if row.rate_of(rich.student) <= samples]
    if fits and len(rich.held) > 1:
        row = max(fits, key=lambda row: (row.rate_of(rich.student), row.teacher))
        return Grant(row, row.shares[rich.student].part, poor, rich)
    clear = rich.cover > _CLEARLY * poor.cover or rich.lacks < 0
    if not others or not clear:
        return None
    row = max(others, key=lambda row: (row.rate_of(rich.student), row.teacher))
    return _cut(row, rich, poor, samples)


def _cut(row: SharedTeacher, rich: Demand, poor: Demand, samples: float) -> Grant | None:
    had = row.shares[rich.student].part
    part = min(samples / row.t_t, had)
    if had - part < CRUMB:
        part = had if len(rich.held) > 1 or not rich.need else had - CRUMB
    return Grant(row, part, poor, rich) if part >= CRUMB else None
