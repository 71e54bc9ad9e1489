"""What a student learned about each teacher: how fast it is, when to ask somebody else.

Beyond the paper, whose students wait for the TTL alone (and whose released code waits
for ever: no deadline on a call, and a broken teacher is asked again at once).

A request's deadline comes from its own teacher's latency, so a slow teacher is not taken
for a hung one. Passing it costs nothing but a second request elsewhere (a hedge, once);
only `give_up_s` ends the teacher's lease. A teacher that failed is left alone for
1, 2, 4 ... seconds.

What a teacher says of its own rate holds until its answers tell: between two answers of
one that always had something to do lies the time of the second, the way included.
"""

from dataclasses import dataclass, field

_NEW = 0.2  # weight of the newest latency in the running mean
_RATE_S = 5.0  # so far back what is known of a teacher's rate reaches
_KNOWN_S = 0.5  # of work seen, before it outweighs what the teacher says


@dataclass(slots=True)
class _Observed:
    """What was observed of one teacher."""

    latency: float  # s, running mean
    last: float  # time of its last answer
    work: float = 0.0  # samples answered while it was never idle, forgetting
    work_s: float = 0.0  # seconds it took for them


@dataclass(slots=True)
class Patience:
    give_up_s: float = 30.0  # for one request: then the teacher is given up
    floor_s: float = 1.0  # no deadline is shorter: schedulers and collectors pause too
    factor: float = 5.0  # times the teacher's own mean latency
    back_off_s: float = 1.0
    longest_back_off_s: float = 60.0
    seen: dict[str, _Observed] = field(default_factory=dict)  # by teacher
    failures: dict[str, int] = field(default_factory=dict)  # in a row

    def deadline_s(self, teacher: str) -> float:
        """After so long, the same part is asked of a second teacher too."""
        known = self.seen.get(teacher)
        if known is None:  # the first answer may include warming up
            return min(self.give_up_s, 5 * self.floor_s)
        return min(self.give_up_s, max(self.floor_s, self.factor * known.latency))

    def rate(self, teacher: str, said: float) -> float:
        """Samples/s of a teacher, as its answers show; what it `said` before they do."""
        known = self.seen.get(teacher)
        if known is None or known.work_s < _KNOWN_S:
            return said
        return known.work / known.work_s

    def on_answer(self, teacher: str, samples: int, sent_at: float, time: float) -> None:
        latency = time - sent_at
        self.failures.pop(teacher, None)
        known = self.seen.get(teacher)
        if known is None:
            self.seen[teacher] = _Observed(latency, time)
            return
        known.latency += _NEW * (latency - known.latency)
        if sent_at <= known.last:  # it had this one already when it gave the last
            took = time - known.last
            kept = max(0.0, 1 - took / _RATE_S)
            known.work = kept * known.work + samples
            known.work_s = kept * known.work_s + took
        known.last = time

    def on_failure(self, teacher: str) -> float:
        """Seconds to leave it alone."""
        count = self.failures[teacher] = self.failures.get(teacher, 0) + 1
        return min(self.longest_back_off_s, self.back_off_s * 2.0 ** min(count - 1, 30))

    def forget(self, teacher: str) -> None:
        """It is gone for good; whoever comes at that address is another."""
        self.seen.pop(teacher, None)
        self.failures.pop(teacher, None)
