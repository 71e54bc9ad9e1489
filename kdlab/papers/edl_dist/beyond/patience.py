"""What a student learned about each teacher: how fast it is, when to ask somebody else.

Beyond the paper, whose students wait for the TTL alone (and whose released code waits
for ever: no deadline on a call, and a broken teacher is asked again at once).

A request's deadline comes from what its own teacher owed, so a slow teacher is not taken
for a hung one. Passing it costs nothing but a second request elsewhere (a hedge);
only `give_up_s` ends the teacher's lease. A teacher that failed is left alone for
1, 2, 4 ... seconds.

What a teacher says of its own rate holds until its answers tell. It answers one request after
the other, so it was at work on this one from its last answer on, or from when the request was
there: what lies between is the time of service, however long the way and however many are
under way. The way there and back is the shortest that was seen beside the work.
"""

from collections.abc import Collection
from dataclasses import dataclass, field
from math import inf

from kdlab.papers.edl_dist.in_flight import PendingRequest

_NEW = 0.2  # weight of the newest in the running mean of the way
_RATE_S, _RATE_PARTS = 5.0, 4.0  # so far back what is known of a teacher's rate reaches
_KNOWN_S = 0.5  # of work seen, before it outweighs what the teacher says
_WAY_SHARE = 0.25  # of the time of service: a shorter way blurs nothing
_OPEN_S, _OPENS = 0.05, 2.0  # what may be on the way at first, and its growth
_KEPT = 64  # teachers that were held once
_LATE = 2.0  # times what was expected: it has become slow


@dataclass(slots=True)
class _Observed:
    """What was observed of one teacher."""

    last: float  # time of its last answer
    way_s: float  # there and back, without its work
    open_s: float = 0.0  # of work may be on the way besides
    opened_at: float = -inf  # when that grew last
    work: float = 0.0  # samples answered, forgetting
    work_s: float = 0.0  # seconds of service they took


@dataclass(slots=True)
class Patience:
    give_up_s: float = 30.0  # for one request: then the teacher is given up
    floor_s: float = 1.0  # no deadline is shorter: schedulers and collectors pause too
    back_off_s: float = 1.0
    longest_back_off_s: float = 60.0
    seen: dict[str, _Observed] = field(default_factory=dict)  # by teacher
    failures: dict[str, int] = field(default_factory=dict)  # in a row

    def overdue_at(self, sent: PendingRequest) -> float:
        """From when an answer takes longer than chance explains."""
        expected_s = sent.due - sent.time
        return sent.due + min(expected_s, max(self.floor_s, expected_s) / 4)

    def late_at(self, sent: PendingRequest) -> float:
        """When the same part is asked of a second teacher too."""
        expected_s = sent.due - sent.time
        # The first answer may include warming up.
        known = sent.teacher in self.seen
        longest_s = max(self.floor_s if known else 5 * self.floor_s, _LATE * expected_s)
        return sent.time + min(self.give_up_s, longest_s)

    def rate(self, teacher: str, said: float) -> float:
        """Samples/s of a teacher, as its answers show; what it `said` before they do."""
        known = self.seen.get(teacher)
        if known is None or known.work_s < _KNOWN_S:
            return max(said, 1e-9)
        return known.work / known.work_s

    def way_s(self, teacher: str) -> float:
        known = self.seen.get(teacher)
        return known.way_s if known is not None else 0.0

    def ahead_s(self, teacher: str) -> float:
        """Seconds of work that may be on the way to a teacher and back.

        It grows twofold with each way: on a link that is full a longer way shows as a lower
        rate before everything is sent there.
        """
        known = self.seen.get(teacher)
        return min(known.way_s, known.open_s) if known is not None else 0.0

    def slowed(
        self, teacher: str, oldest: PendingRequest, size: int, said: float, time: float
    ) -> float:
        """Samples/s of a teacher at most, whose `oldest` request of `size` has no answer yet."""
        rate = self.rate(teacher, said)
        known = self.seen.get(teacher)
        since = oldest.time + self.way_s(teacher)
        if known is not None:
            since = max(since, known.last)
        served_s = time - since
        if served_s <= max(_LATE * size / rate, self.floor_s / 4):
            return rate
        return min(rate, size / served_s)

    def on_answer(
        self, teacher: str, samples: int, sent: PendingRequest, said: float, time: float
    ) -> None:
        """Also of a late answer: nobody else says that a teacher has become slow."""
        self.failures.pop(teacher, None)
        known = self.seen.get(teacher)
        usual_s = samples / self.rate(teacher, said)
        way_s = max(0.0, time - sent.time - usual_s)
        if known is None:
            self.seen[teacher] = _Observed(time, way_s)
            return
        took = time - max(known.last, sent.time + known.way_s)
        late = took > _LATE * usual_s + self.floor_s / 4
        # Maybe: the way is not known so exactly.
        idle = sent.time + known.way_s > known.last
        # Rather the shortest: what waits on a full link is not its way.
        if way_s < known.way_s:
            known.way_s += _NEW * (way_s - known.way_s)
        elif idle:
            known.way_s += _NEW / 5 * (way_s - known.way_s)
        if idle and not late and known.way_s > usual_s * _WAY_SHARE:
            took = samples / max(said, 1e-9)  # until it is never idle, or late
        if sent.time >= known.opened_at:
            known.open_s = max(_OPENS * known.open_s, usual_s, _OPEN_S)
            known.opened_at = time
        # Chance evens out over a few parts; one that has become slow is believed at once.
        kept = max(
            0.0, 1 - took / (_RATE_S if late else max(_RATE_S, _RATE_PARTS * usual_s))
        )
        known.work = kept * known.work + samples
        known.work_s = kept * known.work_s + took
        known.last = time

    def on_failure(self, teacher: str) -> float:
        """Seconds to leave it alone."""
        count = self.failures[teacher] = self.failures.get(teacher, 0) + 1
        return min(self.longest_back_off_s, self.back_off_s * 2.0 ** min(count - 1, 30))

    def prune(self, held: Collection[str]) -> None:
        """Nothing is kept of many that are not held any more; a few may come back."""
        for known in (self.seen, self.failures):
            if len(known) > _KEPT + 2 * len(held):
                for teacher in [name for name in known if name not in held]:
                    del known[teacher]

    def forget(self, teacher: str) -> None:
        """It is gone for good; whoever comes at that address is another."""
        self.seen.pop(teacher, None)
        self.failures.pop(teacher, None)
