"""The ledger of parts in flight: at-least-once work, exactly-once delivery.

Section 3.4 of EDL-Dist names three cases of a lost teacher:
    case 1  before it was scheduled            nothing is in flight, nothing to do
    case 2  scheduled, nothing in flight       nothing to re-send
    case 3  scheduled, an answer is awaited    its parts are sent to another teacher

A part is a range of a batch, cut to what its teacher computes in about half a second.

    state    event                          next state
    -------  -----------------------------  ---------------------------------------------
    (new)    on_sent                        SENT, under the lease epoch of its teacher
    SENT     on_hedged: it is overdue       SENT, with a second teacher too
    SENT     on_answer: the first one       DONE; requests to others become superseded
    SENT     on_teacher_lost, no other has  WAITING, sent before any fresh part
    WAITING  on_sent, after next_waiting    SENT, perhaps cut smaller
    DONE     on_taken_back: unusable        WAITING
    DONE     on_answer: a later one         DONE; dropped by part and lease epoch

A part goes to the teacher that would have it done first: the way there and back, and
(owed + size) / rate. Two heaps keep that at log n for a thousand teachers. At most what a teacher
computes during the way, and two parts, may be under way to it.
"""

from bisect import insort
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from heapq import heapify, heappop, heappush
from math import ceil, inf
from typing import NamedTuple

# The paper sends inputs to the teachers it has and says nothing of how many at once.
_LOOKED_AT = 4  # candidates for a part of unusual size: the soonest for their usual parts
_LONG_S = 1.0  # of work: a part as long as this is computed while no other waits there
_CATCH_UP_S = 1.0  # of its share, that a paced teacher was not asked for
_WAY_SHARE = 0.05  # of its time that a teacher may be idle for the way


class Part(NamedTuple):
    """Samples [start, stop) of one batch of the plan. Sorts in the plan's order."""

    epoch: int
    batch: int
    start: int
    stop: int

    @property
    def size(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True, slots=True)
class PendingRequest:
    teacher: str  # its address
    lease: int  # lease epoch of the teacher when it was sent
    time: float  # seconds, when it was sent
    due: float = inf  # seconds, when its answer is expected


@dataclass(frozen=True, slots=True)
class Speed:
    """Throughput of a teacher, and the sizes of its requests."""

    rate: float  # samples/s: t_t of section 3.2, observed where answers show it
    least: int  # samples: its efficiency falls off below
    most: int  # samples it takes at once
    way_s: float = 0.0  # there and back, without its work
    ahead_s: float = 0.0  # of work that may be on the way
    pace: float = inf  # samples/s that it gets at most: others have the rest of it

    def part(self, rest: int, part_s: float) -> int:
        """Samples of the next part out of `rest`: about `part_s` of work, in equal pieces."""
        aim = min(self.most, max(self.least, 1, self.rate * part_s))
        pieces = max(1, round(rest / aim))
        return min(rest, self.most, ceil(rest / pieces))


class _Earliest:
    """A priority queue of names whose numbers change often; the smallest comes first."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, str]] = []
        self._now: dict[str, float] = {}

    def put(self, name: str, number: float) -> None:
        if self._now.get(name) == number:
            return
        self._now[name] = number
        heappush(self._heap, (number, name))
        if len(self._heap) > 4 * len(self._now) + 64:  # mostly old numbers: begin anew
            self._heap = [(number, name) for name, number in self._now.items()]
            heapify(self._heap)

    def drop(self, name: str) -> None:
        self._now.pop(name, None)

    def first(self) -> tuple[float, str] | None:
        while self._heap and self._now.get(self._heap[0][1]) != self._heap[0][0]:
            heappop(self._heap)
        return self._heap[0] if self._heap else None

    def some(self, count: int) -> list[str]:
        """The first `count` names, in order."""
        taken: dict[str, float] = {}
        while len(taken) < count and self.first() is not None:
            number, name = heappop(self._heap)
            taken[name] = number
            del self._now[name]
        for name, number in taken.items():
            self.put(name, number)
        return list(taken)


@dataclass(slots=True)
class InFlight:
    """Parts by state. Mutable, but pure: its state depends on the calls alone."""

    limit: int = 2  # parts per teacher: one computed, one queued hides the way there
    ahead_s: float = 1.0  # or as many as it computes in this time and on the way
    part_s: float = 0.5  # of a teacher's work in one part
    teachers: dict[str, Speed] = field(default_factory=dict)  # those that may get parts
    waiting: list[Part] = field(default_factory=list)  # lost, sent first; sorted
    sent: dict[Part, list[PendingRequest]] = field(default_factory=dict)
    # Beside `sent`: answered by another meanwhile, or asked for to compare. The teacher still has
    # the part, and no room for more; it may have the same part for both reasons.
    superseded: dict[tuple[Part, str, int], list[PendingRequest]] = field(
        default_factory=dict
    )
    loads: dict[str, int] = field(default_factory=dict)  # parts out per teacher
    owed: dict[str, int] = field(default_factory=dict)  # samples out per teacher
    samples: int = 0  # out or waiting to be sent again; a hedge counts once
    resends: int = 0  # parts of case 3, in all
    hedges: int = 0  # second requests, in all; beyond the paper
    time: float = 0.0  # seconds, of the last tick
    # Seconds, by paced teacher
    _paced_until: dict[str, float] = field(default_factory=dict)
    _usual: dict[str, int] = field(default_factory=dict)  # samples of a part, by teacher
    _with_room: _Earliest = field(default_factory=_Earliest)
    _full: _Earliest = field(default_factory=_Earliest)

    def on_speed(self, teacher: str, speed: Speed) -> None:
        """Admit a teacher, or update its speed."""
        if self.teachers.get(teacher) != speed:
            self.teachers[teacher] = speed
            self._usual[teacher] = speed.part(speed.most, self.part_s)
            self._place(teacher)

    def on_tick(self, time: float) -> None:
        """Let time pass: paced teachers may get their next part."""
        before, self.time = self.time, time
        for teacher, until in self._paced_until.items():
            if before < until <= time:
                self._place(teacher)

    def on_doubt(self, teacher: str, rate: float) -> None:
        """Lower the rate of a teacher that is late, until it answers."""
        speed = self.teachers.get(teacher)
        if speed is not None and rate < speed.rate:
            self.on_speed(teacher, replace(speed, rate=rate))

    def on_unusable(self, teacher: str) -> None:
        """Send a teacher no more parts; answers to those it has are still awaited."""
        self.teachers.pop(teacher, None)
        self._usual.pop(teacher, None)
        self._paced_until.pop(teacher, None)
        self._with_room.drop(teacher)
        self._full.drop(teacher)

    def done_in_s(self, teacher: str, size: int) -> float:
        """Seconds until a teacher answers, if it gets `size` samples more."""
        speed = self.teachers[teacher]
        rate = max(speed.rate, 1e-9)
        # It computes what it owes while this part is on its way, so the longer of both counts.
        return max(speed.way_s, self.owed.get(teacher, 0) / rate) + size / rate

    def stands_idle(self) -> bool:
        """Return whether a teacher has no more to do than is on its way."""
        return any(
            self.owed.get(name, 0) <= speed.rate * speed.way_s
            for name, speed in self.teachers.items()
        )

    def free(self) -> tuple[float, str] | None:
        """(seconds until its next part is done, name) of the soonest teacher with room."""
        return self._with_room.first()

    def busy(self) -> tuple[float, str] | None:
        """(seconds until its next part is done, name) of the soonest teacher without room."""
        return self._full.first()

    def second(self, part: Part, but_not: Collection[str], *, room: bool) -> str | None:
        """Name of the teacher that would have this part done first, apart from `but_not`.

        With `room`, only among those that have some.
        """
        count = len(but_not) + _LOOKED_AT
        among = self._with_room.some(count) + ([] if room else self._full.some(count))
        others = [name for name in among if name not in but_not]
        return min(others, key=lambda n: (self.done_in_s(n, part.size), n), default=None)

    def next_waiting(self, teacher: str) -> Part | None:
        """Take the oldest lost part, cut again to what this teacher does in its time."""
        if not self.waiting:
            return None
        part = self.waiting.pop(0)
        size = self.teachers[teacher].part(part.size, self.part_s)
        if size < part.size:
            insort(self.waiting, part._replace(start=part.start + size))
        return part._replace(stop=part.start + size)

    def on_sent(self, part: Part, teacher: str, lease: int, time: float) -> None:
        """Send a fresh part, or one of `next_waiting`; raise ValueError if it is out already."""
        if part in self.sent:
            raise ValueError(f"{part} is out already, with {self.sent[part]}")
        self.sent[part] = [self._request(part, teacher, lease, time)]

    def on_fresh(self, part: Part) -> None:
        """Count all samples of a batch that is begun, out or not."""
        self.samples += part.size

    def on_cached(self, part: Part) -> None:
        """Count out a batch whose labels come from the cache."""
        self.samples -= part.size

    def on_hedged(self, part: Part, teacher: str, lease: int, time: float) -> None:
        self.hedges += 1
        self.sent[part].append(self._request(part, teacher, lease, time))

    def on_check(self, part: Part, teacher: str, lease: int, time: float) -> None:
        """Send an answered part to another teacher too, for comparison (beyond the paper)."""
        self._put_beside(part, self._request(part, teacher, lease, time))

    def on_checked(self, part: Part, teacher: str, lease: int) -> PendingRequest | None:
        """Take the answered request out of those beside `sent`; None if there is none."""
        beside = self.superseded.get((part, teacher, lease))
        if beside is None:
            return None
        request = beside.pop(0)
        if not beside:
            del self.superseded[part, teacher, lease]
        self._count(teacher, part, -1)
        return request

    def on_taken_back(self, parts: Collection[Part]) -> None:
        """Send parts again whose answers cannot be used, as if their teacher had been lost."""
        for part in parts:
            insort(self.waiting, part)
            self.samples += part.size
        self.resends += len(parts)

    def on_answer(
        self, part: Part, teacher: str, lease: int
    ) -> tuple[PendingRequest | None, bool]:
        """Take an answer: the request it belongs to, and whether it counts.

        Exactly one answer to a part counts. A late one still has its request, unless its teacher
        was given up meanwhile.
        """
        # 3.4 re-sends without a word on late answers: after a TTL one may well come, so it needs
        # the lease epoch to be told from the one that is awaited.
        outs = self.sent.get(part, [])
        mine = next((o for o in outs if (o.teacher, o.lease) == (teacher, lease)), None)
        if mine is None:
            return self.on_checked(part, teacher, lease), False
        del self.sent[part]
        self.samples -= part.size
        self._count(teacher, part, -1)
        for request in outs:
            if request is not mine:
                self._put_beside(part, request)
        return mine, True

    def on_teacher_lost(self, teacher: str, lease: int) -> int:
        """Let the parts of a lost lease wait for another teacher (3.4); return how many.

        0 is case 2 of section 3.4, more is case 3. Only parts sent under that lease epoch: the
        teacher may have come back since. A part that another teacher has too is not sent again.
        """
        lost = 0
        for key in [k for k in self.superseded if k[1:] == (teacher, lease)]:
            for _ in self.superseded.pop(key):
                self._count(teacher, key[0], -1)
        for part, outs in list(self.sent.items()):
            remaining = [o for o in outs if (o.teacher, o.lease) != (teacher, lease)]
            if len(remaining) == len(outs):
                continue
            for out in outs:
                if out not in remaining:
                    self._count(out.teacher, part, -1)
            if remaining:
                self.sent[part] = remaining
            else:
                del self.sent[part]
                insort(self.waiting, part)  # 3.4, case 3: re-sent to the next teacher
                lost += 1
        self.resends += lost
        return lost

    def outstanding(self) -> Iterator[tuple[Part, PendingRequest]]:
        """All requests without an answer, also for parts that another teacher answered."""
        for part, outs in self.sent.items():
            for out in outs:
                yield part, out
        for (part, _, _), beside in self.superseded.items():
            for out in beside:
                yield part, out

    def _request(self, part: Part, teacher: str, lease: int, time: float) -> PendingRequest:
        due = time + self.done_in_s(teacher, part.size)
        pace = self.teachers[teacher].pace
        # Beyond the paper: it is shared, and one student gets its share only
        if pace < inf:
            since = max(self._paced_until.get(teacher, time), time - _CATCH_UP_S)
            self._paced_until[teacher] = since + part.size / max(pace, 1e-9)
        self._count(teacher, part, 1)
        return PendingRequest(teacher, lease, time, due)

    def _put_beside(self, part: Part, out: PendingRequest) -> None:
        self.superseded.setdefault((part, out.teacher, out.lease), []).append(out)

    def _count(self, teacher: str, part: Part, sign: int) -> None:
        self.loads[teacher] = self.loads.get(teacher, 0) + sign
        self.owed[teacher] = self.owed.get(teacher, 0) + sign * part.size
        if not self.loads[teacher]:
            del self.loads[teacher], self.owed[teacher]
        self._place(teacher)

    def _place(self, teacher: str) -> None:
        """File a teacher with or without room, by when its next part would be done."""
        speed = self.teachers.get(teacher)
        if speed is None:
            return
        usual, loads = self._usual[teacher], self.loads.get(teacher, 0)
        rate, way_s = speed.rate if speed.rate > 1e-9 else 1e-9, speed.way_s
        owed_s, takes_s = self.owed.get(teacher, 0) / rate, usual / rate
        # A part of many seconds hides the way; a second one would only wait there.
        short = takes_s <= _LONG_S or takes_s <= way_s / _WAY_SHARE
        ahead_s = self.ahead_s + speed.ahead_s - min(takes_s, self.ahead_s / 2)
        room = not loads or owed_s <= ahead_s or (loads < self.limit and short)
        paced_until = self._paced_until.get(teacher, -inf) if speed.pace < inf else -inf
        waits_s = paced_until - self.time
        room = room and waits_s <= 0
        target, former = (
            (self._with_room, self._full) if room else (self._full, self._with_room)
        )
        target.put(teacher, max(owed_s, way_s, waits_s) + takes_s)
        former.drop(teacher)
