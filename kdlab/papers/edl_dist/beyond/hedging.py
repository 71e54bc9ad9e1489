"""Hedges: a second teacher computes a part too, since the first one is late.

Beyond the paper, which waits for its teachers until their TTL expires (3.4). A part is late after
twice the expected time (patience.py). It is late earlier where its answer is expected after the
student needs it and another teacher would have it sooner: then as late as possible, since most
answers come in time. Where the second teacher is late as well, a third is asked.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from heapq import nsmallest

from kdlab.papers.edl_dist.beyond.patience import Patience
from kdlab.papers.edl_dist.in_flight import InFlight, Part, PendingRequest

_GAIN = 2.0  # a second teacher must be done in half the time that the first still needs
_MARGIN = 2.0  # times what a second teacher takes, before the student needs the part
# Hedges for each answer, and saved up at most: on a full link all are late, and hedges worsen it.
_SHARE, _SAVED = 0.1, 8.0
_AT_ONCE = 4  # parts for which a teacher is sought, with each event
_CHECK_EVERY_S = 0.2  # between two checks of all parts: no deadline is shorter than 1 s


@dataclass(slots=True)
class Hedging:
    ledger: InFlight
    patience: Patience
    enabled: bool
    checked_at: float  # seconds: when all parts under way were checked last
    needed_in_s: Callable[[Part], float]  # seconds until the student misses a part
    stated_rate: Callable[[str], float | None]  # samples/s by address; None: no teacher
    saved: float = _SAVED  # hedges that may be sent
    hedged: set[Part] = field(default_factory=set)  # to send, as soon as a teacher has room

    def overdue(self, time: float) -> Iterator[tuple[str, int]]:
        """Yield (teacher, lease) of those to give up; mark late parts for a hedge."""
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
            rate = self.stated_rate(teacher)
            if rate is not None:
                slowed = self.patience.slowed(teacher, sent, part.size, rate, time)
                self.ledger.on_doubt(teacher, slowed)
        if self.enabled and self.ledger.sent:
            # No part is needed before the first one, and most are due before that.
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
        second = self.ledger.second(part, [out.teacher for out in outs], room=False)
        if second is None:
            return False
        return needed_in_s < _MARGIN * self.ledger.done_in_s(second, part.size)

    def _left_s(self, out: PendingRequest, time: float) -> float:
        """Seconds until its answer; a late one takes as long again as it has taken."""
        late = time > self.patience.overdue_at(out)
        return time - out.time if late else abs(out.due - time)

    def _within_s(self, out: PendingRequest, time: float) -> float:
        """Seconds within which a second teacher must be done."""
        left_s = self._left_s(out, time)
        return left_s if time > self.patience.overdue_at(out) else left_s / _GAIN

    def on_arrived(self, part: Part) -> None:
        self.hedged.discard(part)
        most = _SAVED + len(self.ledger.teachers) / _SAVED
        self.saved = min(most, self.saved + _SHARE)

    def sendable(self, time: float) -> Iterator[tuple[Part, str]]:
        """Yield parts to hedge now, each with its second teacher; others wait for room."""
        if self.ledger.free() is None or self.saved < 1.0:
            return
        for part in nsmallest(_AT_ONCE, self.hedged):
            outs = self.ledger.sent.get(part)
            if outs is None:  # answered, or lost and sent again, meanwhile
                self.hedged.discard(part)
                continue
            within_s = min(self._within_s(out, time) for out in outs)
            second = self.ledger.second(part, [out.teacher for out in outs], room=True)
            if second is not None and self.ledger.done_in_s(second, part.size) < within_s:
                self.hedged.discard(part)
                self.saved -= 1.0
                yield part, second
