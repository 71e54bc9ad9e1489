"""Latency statistics of each teacher: its rate, its way, and the deadlines of its requests.

Beyond the paper, whose students wait for the TTL alone (and whose released code waits
for ever: no deadline on a call, and a broken teacher is asked again at once).

A request's deadline comes from what its teacher owed, so a slow teacher is not taken for a hung
one. A missed deadline costs only a second request elsewhere (a hedge); only `give_up_s` ends the
teacher's lease. A teacher that failed is avoided for 1, 2, 4 ... seconds.

The rate that a teacher states holds until its answers show another. A teacher answers one request
after the other, so it works on a request from its previous answer on, or from the arrival of the
request: the time from then to the answer is the service time, however long the way and however
many requests are under way. The way there and back is the shortest that was observed besides.
"""

from collections.abc import Collection
from dataclasses import dataclass, field
from math import inf

from kdlab.papers.edl_dist.in_flight import PendingRequest

_NEW = 0.2  # weight of the newest answer in the running mean of the way
_RATE_S, _RATE_PARTS = 5.0, 4.0  # seconds, and parts, back to which the rate reaches
_KNOWN_S = 0.5  # seconds of observed work, before it replaces the stated rate
_WAY_SHARE = 0.25  # of the service time: a shorter way does not blur the rate
_OPEN_S, _OPENS = 0.05, 2.0  # seconds of work on the way at first, and their growth
_KEPT = 64  # teachers that are remembered after they went
_LATE = 2.0  # times the expected time: it has become slow


@dataclass(slots=True)
class _Observed:
    """Observations of one teacher."""

    last: float  # seconds, time of its last answer
    way_s: float  # there and back, without its work
    open_s: float = 0.0  # seconds of work that may be on the way besides
    opened_at: float = -inf  # seconds, when `open_s` grew last
    work: float = 0.0  # answered samples; older ones fade
    work_s: float = 0.0  # seconds of service that these took


@dataclass(slots=True)
class Patience:
    give_up_s: float = 30.0  # for one request: then the teacher is given up
    floor_s: float = 1.0  # no deadline is shorter: schedulers and collectors pause too
    back_off_s: float = 1.0  # after the first failure; doubles with each in a row
    longest_back_off_s: float = 60.0
    seen: dict[str, _Observed] = field(default_factory=dict)  # by teacher
    failures: dict[str, int] = field(default_factory=dict)  # in a row

    def overdue_at(self, sent: PendingRequest) -> float:
        """Time in seconds from which an answer takes longer than chance explains."""
        expected_s = sent.due - sent.time
        return sent.due + min(expected_s, max(self.floor_s, expected_s) / 4)

    def late_at(self, sent: PendingRequest) -> float:
        """Time in seconds at which a second teacher is asked for the same part too."""
        expected_s = sent.due - sent.time
        # The first answer may include warming up.
        known = sent.teacher in self.seen
        longest_s = max(self.floor_s if known else 5 * self.floor_s, _LATE * expected_s)
        return sent.time + min(self.give_up_s, longest_s)

    def rate(self, teacher: str, stated: float) -> float:
        """Samples/s of a teacher as its answers show; the `stated` rate before they do."""
        known = self.seen.get(teacher)
        if known is None or known.work_s < _KNOWN_S:
            return max(stated, 1e-9)
        return known.work / known.work_s

    def way_s(self, teacher: str) -> float:
        known = self.seen.get(teacher)
        return known.way_s if known is not None else 0.0

    def ahead_s(self, teacher: str) -> float:
        """Seconds of work that may be on the way to a teacher and back.

        They double with each way: on a full link a longer way shows as a lower rate before
        everything is sent there.
        """
        known = self.seen.get(teacher)
        return min(known.way_s, known.open_s) if known is not None else 0.0

    def slowed(
        self, teacher: str, oldest: PendingRequest, size: int, stated: float, time: float
    ) -> float:
        """Upper bound of a teacher's samples/s, while its `oldest` request of `size` is open."""
        rate = self.rate(teacher, stated)
        known = self.seen.get(teacher)
        since = oldest.time + self.way_s(teacher)
        if known is not None:
            since = max(since, known.last)
        served_s = time - since
        if served_s <= max(_LATE * size / rate, self.floor_s / 4):
            return rate
        return min(rate, size / served_s)

    def on_answer(
        self, teacher: str, samples: int, sent: PendingRequest, stated: float, time: float
    ) -> None:
        """Learn from an answer, also from a late one: only it shows that a teacher is slow now."""
        self.failures.pop(teacher, None)
        known = self.seen.get(teacher)
        usual_s = samples / self.rate(teacher, stated)
        way_s = max(0.0, time - sent.time - usual_s)
        if known is None:
            self.seen[teacher] = _Observed(time, way_s)
            return
        took = time - max(known.last, sent.time + known.way_s)
        late = took > _LATE * usual_s + self.floor_s / 4
        # Possibly idle: the way is not known exactly.
        idle = sent.time + known.way_s > known.last
        # Towards the shortest: time spent waiting on a full link is not the way.
        if way_s < known.way_s:
            known.way_s += _NEW * (way_s - known.way_s)
        elif idle:
            known.way_s += _NEW / 5 * (way_s - known.way_s)
        if idle and not late and known.way_s > usual_s * _WAY_SHARE:
            took = samples / max(stated, 1e-9)  # while it may be idle and is not late
        if sent.time >= known.opened_at:
            known.open_s = max(_OPENS * known.open_s, usual_s, _OPEN_S)
            known.opened_at = time
        # Chance evens out over a few parts; that a teacher has become slow is believed at once.
        remaining = max(
            0.0, 1 - took / (_RATE_S if late else max(_RATE_S, _RATE_PARTS * usual_s))
        )
        known.work = remaining * known.work + samples
        known.work_s = remaining * known.work_s + took
        known.last = time

    def on_failure(self, teacher: str) -> float:
        """Count a failure; return the seconds for which to avoid the teacher."""
        count = self.failures[teacher] = self.failures.get(teacher, 0) + 1
        return min(self.longest_back_off_s, self.back_off_s * 2.0 ** min(count - 1, 30))

    def prune(self, held: Collection[str]) -> None:
        """Forget teachers that are no longer held, once they are many; a few may come back."""
        for known in (self.seen, self.failures):
            if len(known) > _KEPT + 2 * len(held):
                for teacher in [name for name in known if name not in held]:
                    del known[teacher]

    def forget(self, teacher: str) -> None:
        """Forget a lost teacher: the next one at its address is another."""
        self.seen.pop(teacher, None)
        self.failures.pop(teacher, None)
