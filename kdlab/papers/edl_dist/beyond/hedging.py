"""Which parts a second teacher is asked for too, since the first one is late.

Beyond the paper, which waits for its teachers. A part is late beyond twice what was expected
(patience.py); earlier, where its answer comes after it is needed, as far as is known, and
another teacher would have it sooner: as late as possible, since most answers come in time.
A second one that is late is no better than the first: a third is asked.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from heapq import nsmallest

from kdlab.papers.edl_dist.beyond.patience import Patience
from kdlab.papers.edl_dist.in_flight import InFlight, Part, PendingRequest

_GAIN = 2.0  # a second teacher must be done in half the time the first still needs
_MARGIN = 2.0  # times what a second teacher takes: so long before it is needed
# Of the answers, and so many saved up: on a full link all are late, and a second one worse.
_SHARE, _SAVED = 0.1, 8.0
_AT_ONCE = 4  # parts that a teacher is looked for, with each event
_CHECK_EVERY_S = 0.2  # all that is under way: no deadline is shorter than 1 s


@dataclass(slots=True)
class Hedging:
    ledger: InFlight
    patience: Patience
    enabled: bool
    checked_at: float  # seconds: when all that is under way was looked at last
    needed_in_s: Callable[[Part], float]
    said: Callable[[str], float | None]  # samples/s, by a teacher itself; None: it is none
    saved: float = _SAVED  # hedges that may be sent
    hedged: set[Part] = field(default_factory=set)  # to be: as soon as a teacher has room

    def overdue(self, time: float) -> Iterator[tuple[str, int]]:
        """(teacher, lease) whose patience has run out; parts that are late are hedged."""
        if time - self.checked_at < _CHECK_EVERY_S:
            return
        self.checked_at = time
        given_up: dict[tuple[str, int], None] = {}  # in order, each once
        oldest: dict[str, tuple[Part, PendingRequest]] = {}
        floor_s = self.patience.floor_s / 4  # most parts are younger
        for part, sent in self.ledger.outstanding():
            waited = time - sent.time
            if waited < floor_s:
                continue
            if sent.teacher not in oldest or sent.time < oldest[sent.teacher][1].time:
                oldest[sent.teacher] = part, sent
            if waited > self.patience.give_up_s:
                given_up[sent.teacher, sent.lease] = None
        for teacher, (part, sent) in oldest.items():
            rate = self.said(teacher)
            if rate is not None:
                slowed = self.patience.slowed(teacher, sent, part.size, rate, time)
                self.ledger.on_doubt(teacher, slowed)
        if self.enabled and self.ledger.sent:
            # Nothing is needed before the first of them is, and most are due before that.
            soonest = time + self.needed_in_s(min(self.ledger.sent))
            self.hedged.update(
                part
                for part, outs in self.ledger.sent.items()
                if not time < outs[0].due <= soonest and self._is_late(part, time)
            )
        yield from given_up

    def _is_late(self, part: Part, time: float) -> bool:
        outs = self.ledger.sent[part]
        if time - outs[-1].time < self.patience.floor_s / 4:
            return False
        if all(time > self.patience.late_at(out) for out in outs):
            return True
        needed_in_s = self.needed_in_s(part)
        if min(self._left_s(out, time) for out in outs) <= needed_in_s:
            return False
        other = self.ledger.second(part, [out.teacher for out in outs], room=False)
        if other is None:
            return False
        return needed_in_s < _MARGIN * self.ledger.done_in_s(other, part.size)

    def _left_s(self, out: PendingRequest, time: float) -> float:
        """Seconds until its answer; who is late needs as much more."""
        late = time > self.patience.overdue_at(out)
        return time - out.time if late else abs(out.due - time)

    def _within_s(self, out: PendingRequest, time: float) -> float:
        """Seconds within which a second one must have it."""
        left_s = self._left_s(out, time)
        return left_s if time > self.patience.overdue_at(out) else left_s / _GAIN

    def on_arrived(self, part: Part) -> None:
        self.hedged.discard(part)
        most = _SAVED + len(self.ledger.teachers) / _SAVED
        self.saved = min(most, self.saved + _SHARE)

    def sendable(self, time: float) -> Iterator[tuple[Part, str]]:
        """Parts with the teacher that takes them now; the others wait for one."""
        if self.ledger.free() is None or self.saved < 1.0:
            return
        for part in nsmallest(_AT_ONCE, self.hedged):
            outs = self.ledger.sent.get(part)
            if outs is None:  # answered, or lost and sent again, meanwhile
                self.hedged.discard(part)
                continue
            within_s = min(self._within_s(out, time) for out in outs)
            other = self.ledger.second(part, [out.teacher for out in outs], room=True)
            if other is not None and self.ledger.done_in_s(other, part.size) < within_s:
                self.hedged.discard(part)
                self.saved -= 1.0
                yield part, other
