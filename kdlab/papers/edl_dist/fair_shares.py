"""Who shares the teachers how, where they fall short or do not divide evenly.

Beyond the paper, which has several students and no word on who comes first. Fair in the
max-min sense: whoever is covered least gets from whoever is covered most, until both are
covered alike. A teacher may serve several students at once, each with a share of its rate:
three teachers make four equal shares, and one quick one serves two students beside slow ones.
Whole teachers move where that does it, since each student that a teacher has is one more that
asks it for small parts.

Pure functions of the rows; the table (leases.py) carries out what they say.
"""

from collections.abc import Collection
from dataclasses import dataclass, field
from math import inf
from typing import Literal, NamedTuple

from kdlab.papers.edl_dist.assignment import nearest, next_teacher
from kdlab.papers.edl_dist.teacher_info import TeacherInfo

LeaseState = Literal["registered", "free", "assigned", "draining"]

CRUMB = 0.02  # of a teacher: no share is smaller
_WORTH = 0.025  # of a need: less is no reason to change anything
_CLEARLY = 1.25  # rates are guesses: for so much a student gets one teacher more
_LEFT = 0.1  # of what it has, whoever is promised nothing keeps at least


@dataclass(slots=True)
class Share:
    """What a student has of a teacher."""

    epoch: int  # of the lease
    part: float  # of the teacher's rate, from CRUMB to 1


@dataclass(frozen=True, slots=True)
class Lease:
    """A teacher as its student sees it: with the rate that is the student's."""

    teacher: str  # address
    epoch: int
    t_t: float  # samples/s: the student's share
    state: LeaseState
    share: float = 1.0  # of the teacher
    info: TeacherInfo | None = None


@dataclass(slots=True)
class SharedTeacher:
    """A teacher in the coordinator's table."""

    teacher: str  # address
    state: LeaseState
    renewed_at: float
    ttl_s: float
    t_t: float = 0.0  # samples/s, measured by the teacher itself
    shares: dict[str, Share] = field(default_factory=dict)  # by student
    info: TeacherInfo | None = None  # what it says of itself, once it is ready

    @property
    def rest(self) -> float:
        """The part of it that is nobody's."""
        left = 1.0 - sum(share.part for share in self.shares.values())
        return left if left >= CRUMB else 0.0

    def lease(self, student: str) -> Lease:
        """What the student is told of it."""
        share = self.shares[student]
        part = share.part if share.part < 1 - CRUMB else 1.0
        rate = part * self.t_t
        return Lease(self.teacher, share.epoch, rate, self.state, part, self.info)

    def rate_of(self, student: str) -> float:
        """Samples/s that are this student's."""
        share = self.shares.get(student)
        return 0.0 if share is None else share.part * self.t_t


@dataclass(slots=True)
class Demand:
    """What one student asked for; it is searching while its teachers fall short."""

    student: str
    t_s: float  # samples/s to be covered by teachers: the need, or a bit more when it asks
    at_most: int | None = None
    since: float = 0.0  # searching since
    priority: float = 1.0  # a share of teachers in proportion, when they fall short
    floor: int = 0  # as much as so many teachers do is not taken away for others
    need: float = 0.0  # samples/s, as it said last
    all_rate: float = inf  # samples/s of all teachers, whoever has them
    asked_at: float = -inf  # for one more
    rate: float = 0.0  # samples/s of the teachers it holds
    held: dict[str, SharedTeacher] = field(default_factory=dict)

    @property
    def weight(self) -> float:
        """The need by priority: students covered alike have teachers in proportion to it.

        Nobody can use more than all teachers: who overstates its need, before it has
        trained, takes no more from others than who needs just these.
        """
        return min(self.need, self.all_rate) * self.priority

    @property
    def cover(self) -> float:
        """Share of the need that is covered, by priority."""
        return self.rate / self.weight if self.weight > 0 else inf

    @property
    def is_short(self) -> bool:
        return self.t_s - self.rate > 1e-9 * self.t_s

    @property
    def is_full(self) -> bool:
        """Whether it may not hold any teacher more; its shares may still grow."""
        return self.at_most is not None and len(self.held) >= self.at_most

    @property
    def lacks(self) -> float:
        """Samples/s that it needs and does not have."""
        return self.need - self.rate

    @property
    def searching(self) -> bool:
        return self.is_short and not self.is_full

    @property
    def teachers(self) -> float:
        """Whole ones that its shares add up to."""
        return sum(row.shares[self.student].part for row in self.held.values())

    def may_hold(self, row: SharedTeacher) -> bool:
        return not self.is_full or row.teacher in self.held


class Grant(NamedTuple):
    """So much of a teacher for a student, from another one or of what nobody has."""

    row: SharedTeacher
    part: float
    to: Demand
    by: Demand | None = None


def next_grant(
    rows: Collection[SharedTeacher], demands: Collection[Demand]
) -> Grant | None:
    """Who gets what next: 3.4, a newly available teacher goes to a student that is searching."""
    for poor in poorest(demands):
        grant = of_free(rows, poor, poor.t_s - poor.rate) or lift(demands, poor)
        if grant is not None:
            return grant
    return None


def of_free(
    rows: Collection[SharedTeacher], demand: Demand, missing: float
) -> Grant | None:
    """A teacher that is free, or all that others leave of one."""
    free = {row.teacher: row for row in rows if row.rest}
    rates = {name: row.rest * row.t_t for name, row in free.items()}
    among = {name: rate for name, rate in rates.items() if name in demand.held}
    if not among and not demand.is_full:
        here = {n: 1.0 if row.info is None else row.info.here for n, row in free.items()}
        among = dict(nearest(rates, here))
    teacher = next_teacher(among, missing)
    return None if teacher is None else Grant(free[teacher], free[teacher].rest, demand)


def poorest(demands: Collection[Demand]) -> list[Demand]:
    """Who comes next: first whoever has less than its floor, then the least covered."""
    short = sorted(
        (d for d in demands if d.is_short), key=lambda d: (d.cover, d.since, d.student)
    )
    promised = [d for d in short if d.floor and d.teachers < d.floor - CRUMB]
    return [*promised, *(d for d in short if d not in promised)]


def lift(demands: Collection[Demand], poor: Demand) -> Grant | None:
    """What a better covered student has that is better used here."""
    if poor.lacks <= 1e-9 * poor.need:
        return None
    for rich in sorted(demands, key=lambda d: d.lacks / d.need if d.need else -inf):
        if rich is poor or not rich.rate:
            continue
        samples = _to_move(rich, poor)
        if samples > 0 and (move := _of_which(rich, poor, samples)) is not None:
            return move
    return None


def _to_move(rich: Demand, poor: Demand) -> float:
    """Samples/s: until both are covered alike, or what was promised is kept."""
    missing = poor.floor - poor.teachers
    if poor.floor and missing > 0 and rich.teachers > rich.floor + CRUMB:
        per_teacher = rich.rate / rich.teachers
        most = min(rich.teachers - rich.floor, (1 - _LEFT) * rich.teachers)
        return min(min(missing, most) * per_teacher, poor.lacks)
    both, needs = rich.rate + poor.rate, rich.need + poor.need
    if both >= needs:  # enough for both, whoever comes before whom
        samples = rich.rate - rich.need * both / needs
    elif rich.teachers <= rich.floor + CRUMB and (
        poor.teachers >= min(poor.floor, rich.teachers)
    ):
        samples = -rich.lacks  # its floor is its own, as far as it needs it
    else:
        alike = rich.rate - rich.weight * both / (rich.weight + poor.weight)
        samples = max(alike, -rich.lacks)
    least = _WORTH * min(rich.need, poor.need, rich.rate)
    return samples if samples > least else 0.0


def _of_which(rich: Demand, poor: Demand, samples: float) -> Grant | None:
    """A teacher that both have, or a whole share; else a share of the quickest."""
    both = [row for name, row in rich.held.items() if name in poor.held]
    if both:
        row = max(both, key=lambda row: (row.rate_of(rich.student), row.teacher))
        return _part(row, rich, poor, samples)
    others = [row for row in rich.held.values() if poor.may_hold(row)]
    fits = [row for row in others if row.rate_of(rich.student) <= samples]
    if fits and len(rich.held) > 1:
        row = max(fits, key=lambda row: (row.rate_of(rich.student), row.teacher))
        return Grant(row, row.shares[rich.student].part, poor, rich)
    clear = rich.cover > _CLEARLY * poor.cover or rich.lacks < 0
    if not others or not clear:
        return None
    row = max(others, key=lambda row: (row.rate_of(rich.student), row.teacher))
    return _part(row, rich, poor, samples)


def _part(row: SharedTeacher, rich: Demand, poor: Demand, samples: float) -> Grant | None:
    had = row.shares[rich.student].part
    part = min(samples / row.t_t, had)
    if had - part < CRUMB:
        part = had if len(rich.held) > 1 or not rich.need else had - CRUMB
    return Grant(row, part, poor, rich) if part >= CRUMB else None
