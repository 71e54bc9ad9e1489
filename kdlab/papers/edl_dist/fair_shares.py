"""Who shares the teachers how: fair shares now, and turns where they do not divide evenly.

Beyond the paper, which has several students and no word on who comes first. Fair in the
max-min sense: a teacher moves from a better covered student to the worst, or two change
places, where that clearly lifts the worst. Teachers are whole, though: three of them make
no four equal shares. So whoever was given more than it uses, and has that stored, lends
what it can spare for as long as its store lasts; and where somebody has nothing at all,
those that were given most give way in turn.

Pure functions of the rows; the table (leases.py) carries out what they say.
"""

from collections.abc import Collection
from dataclasses import dataclass, field
from itertools import product
from math import inf
from typing import Literal, NamedTuple

from kdlab.papers.edl_dist.teacher_info import TeacherInfo

LeaseState = Literal["registered", "free", "assigned", "draining"]

_LIFT = 1.05  # a move must raise the worst cover by 5 %, or two students swap for ever
_CLEARLY = 1.25  # rates are guesses: so much quicker a teacher is worth a swap
_TRIED_S = 4.0  # so long after a swap rates may be what others left behind
_SWAPS_OF = 32  # teachers: with more, shares are even enough
_STORED = 2048  # samples that a student can have unused, at least (hybrid_schedule.py)
_MOST_AHEAD_S = 10.0
_MISSES = 0.1  # so much less than what one gains by a turn counts what the other misses
_MOST_COVER = 1.5  # counts as given: more is no use
_UNEVEN_S = 0.5  # of cover: by so much students differ before they take turns


@dataclass(slots=True)
class Lease:
    teacher: str  # address
    state: LeaseState
    renewed_at: float
    ttl_s: float
    t_t: float = 0.0  # samples/s, measured by the teacher itself
    epoch: int = 0
    student: str | None = None
    assigned_at: float = 0.0
    info: TeacherInfo | None = None  # what it says of itself, once it is ready


@dataclass(slots=True)
class Demand:
    """What one student asked for; it is searching while its teachers fall short."""

    student: str
    t_s: float  # samples/s to be covered by teachers: the need, or a bit more when it asks
    at_most: int | None = None
    since: float = 0.0  # searching since
    priority: float = 1.0  # a share of teachers in proportion, when they fall short
    floor: int = 1  # teachers that are not moved away for others
    need: float = 0.0  # samples/s, as it said last
    asked_at: float = -inf  # for one more
    given: float = 0.0  # its cover over the time in which others had no teacher, in seconds
    ahead_s: float = (
        0.0  # of its need it was given more than it uses, as far as it can store
    )
    swapped_at: float = -inf
    rests_until: float = -inf  # it lives on that, and others have its turn
    rate: float = 0.0  # samples/s of the teachers it holds
    held: dict[str, Lease] = field(default_factory=dict)

    @property
    def cover(self) -> float:
        """Share of the need that is covered, by priority."""
        return self.cover_with(self.rate)

    def cover_with(self, rate: float) -> float:
        needs = self.t_s * self.priority
        return rate / needs if needs > 0 else inf

    @property
    def searching(self) -> bool:
        return not self.is_full and self.t_s - self.rate > 1e-9 * self.t_s

    @property
    def is_full(self) -> bool:
        return self.at_most is not None and len(self.held) >= self.at_most

    def may_swap(self, time: float) -> bool:
        return len(self.held) <= _SWAPS_OF and time - self.swapped_at >= _TRIED_S


class Exchange(NamedTuple):
    """A lease for the poor one, and perhaps one of its own instead."""

    theirs: Lease
    rich: Demand
    own: Lease | None

    @property
    def more(self) -> float:
        """Samples/s that the poor one has more by it."""
        return self.theirs.t_t - (self.own.t_t if self.own is not None else 0.0)

    @property
    def is_clear(self) -> bool:
        """Whether what it brings is no error of measurement."""
        return self.theirs.t_t > _CLEARLY * (self.own.t_t if self.own is not None else 0.0)


def poorest(demands: Collection[Demand], time: float) -> list[Demand]:
    """Who comes next: first whoever has less than its floor, then the least covered.

    Whoever rests comes last: what nobody else wants is for it.
    """
    searching = [d for d in demands if d.searching]
    promised = [d for d in searching if len(d.held) < d.floor]
    groups = [group for group in (promised, searching) if group]
    return [
        min(g, key=lambda d: (d.rests_until > time, d.cover, d.since, d.student))
        for g in groups
    ]


def lift(demands: Collection[Demand], poor: Demand, time: float) -> Exchange | None:
    """What a better covered student has that is better used here."""
    if poor.rests_until > time:
        return None
    promised = 1 <= len(poor.held) < poor.floor
    for rich in sorted(demands, key=lambda d: -d.cover):
        if rich is poor or (rich.cover <= poor.cover and not promised):
            continue
        kept = max(1, rich.floor) if poor.held else 1  # a first one comes before floors
        if len(rich.held) <= kept:
            continue
        lease = min(rich.held.values(), key=lambda le: (le.t_t, le.teacher))
        move = Exchange(lease, rich, None)
        # Of many small ones a single one lifts little: until both are covered alike.
        apart = rich.cover > poor.cover * _LIFT
        uneven = rich.cover_with(rich.rate - move.more) >= poor.cover_with(
            poor.rate + move.more
        )
        lifts = _worse_cover(move, poor) > poor.cover * _LIFT
        if promised or lifts or (apart and uneven):
            return move
    swaps = (
        Exchange(theirs, rich, own)
        for rich in (demands if poor.may_swap(time) else ())
        if rich.cover > poor.cover and rich.may_swap(time)
        for theirs, own in product(rich.held.values(), poor.held.values())
    )
    # What is measured of teachers alike is no reason, but where it covers both.
    good = (s for s in swaps if s.is_clear or _worse_cover(s, poor) * _LIFT >= 1)
    best = max(good, key=lambda swap: _worse_cover(swap, poor), default=None)
    if best is None or _worse_cover(best, poor) <= poor.cover * _LIFT:
        return None
    return best


def _worse_cover(exchange: Exchange, poor: Demand) -> float:
    rich, more = exchange.rich, exchange.more
    return min(rich.cover_with(rich.rate - more), poor.cover_with(poor.rate + more))


def pass_time(demands: Collection[Demand], seconds: float) -> None:
    """What each was given meanwhile, and has stored."""
    for demand in demands:
        demand.given += seconds * min(demand.cover, _MOST_COVER)
        ahead_s = demand.ahead_s + seconds * (demand.rate / max(demand.t_s, 1e-9) - 1)
        demand.ahead_s = max(0.0, min(ahead_s, _stored_s(demand)))
    least = min((demand.given for demand in demands), default=0.0)
    for demand in demands:  # what it could not store was no use to it
        demand.given = min(demand.given, least + 2 * _UNEVEN_S + _stored_s(demand))


def _stored_s(demand: Demand) -> float:
    return min(_MOST_AHEAD_S, _STORED / max(demand.t_s, 1e-9))


def turn(
    demands: Collection[Demand], turn_s: float, time: float
) -> tuple[Demand, Exchange] | None:
    """Whose turn it is, and by what; leases are held for `turn_s` at least."""
    poor_first = sorted(demands, key=lambda d: (d.given, d.since, d.student))
    ahead_first = sorted(poor_first, key=lambda d: -d.ahead_s)
    for poor in poor_first:
        if not poor.searching or poor.rests_until > time:
            continue
        for rich in ahead_first:
            fair = not poor.held and rich.given - poor.given > _UNEVEN_S
            if rich is poor or not (fair or rich.ahead_s >= turn_s):
                continue
            best = _best_turn(rich, poor, fair, turn_s, time)
            if best is not None:
                return poor, best
    return None


def _best_turn(
    rich: Demand, poor: Demand, fair: bool, turn_s: float, time: float
) -> Exchange | None:
    def due(demand: Demand) -> list[Lease]:
        held = demand.held.values()
        ended = [le for le in held if time - le.assigned_at >= turn_s]
        return sorted(ended, key=lambda le: (le.t_t, le.teacher))[-_SWAPS_OF:]

    def misses_s(exchange: Exchange) -> float:
        return turn_s * (1 - (rich.rate - exchange.more) / max(rich.t_s, 1e-9))

    def gain(exchange: Exchange) -> float:
        after = min(1.0, poor.cover_with(poor.rate + exchange.more))
        return after - misses_s(exchange) * _MISSES

    moves = [Exchange(lease, rich, None) for lease in due(rich)]
    swaps = [Exchange(a, rich, b) for a, b in product(due(rich), due(poor))]
    # What it has stored must last for its turn without, or the other has nothing at all.
    possible = [
        e for e in (*moves, *swaps) if e.is_clear and (fair or misses_s(e) <= rich.ahead_s)
    ]
    return max(possible, key=gain, default=None)


def rest(rich: Demand, time: float) -> None:
    """It has given something away for its turn: it lives on what it has stored."""
    missing = 1 - rich.rate / max(rich.t_s, 1e-9)
    rich.rests_until = time + (rich.ahead_s / missing if missing > 0 else 0.0)
