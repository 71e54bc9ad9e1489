"""Which parts a second teacher is asked for too, since the first one is late.

Beyond the paper, which waits for its teachers. A part is hedged once. It is late beyond a
multiple of its teacher's own latency (patience.py), or earlier where the student waits for
it and another teacher would have it done in half the time that the first still needs.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from kdlab.papers.edl_dist.in_flight import InFlight, Part
from kdlab.papers.edl_dist.patience import Patience

_GAIN = 2.0  # a second teacher must be done in half the time the first still needs
_CHECK_EVERY_S = 0.2  # all that is under way: no deadline is shorter than 1 s


@dataclass(slots=True)
class Hedging:
    ledger: InFlight
    patience: Patience
    enabled: bool
    checked_at: float  # seconds: when all that is under way was looked at last
    hedged: set[Part] = field(default_factory=set)  # already, or to be
    to_send: list[Part] = field(default_factory=list)  # as soon as a teacher has room

    def _add(self, part: Part) -> None:
        self.hedged.add(part)
        self.to_send.append(part)

    def overdue(self, time: float) -> Iterator[tuple[str, int]]:
        """(teacher, lease) whose patience has run out; parts past their deadline are hedged."""
        if time - self.checked_at < _CHECK_EVERY_S:
            return
        self.checked_at = time
        given_up: dict[tuple[str, int], None] = {}  # in order, each once
        late: list[Part] = []
        floor_s = self.patience.floor_s  # no deadline is shorter: most parts are younger
        for part, sent in self.ledger.outstanding():
            waited = time - sent.time
            if waited > self.patience.give_up_s:
                given_up[sent.teacher, sent.lease] = None
            elif waited > floor_s and waited > self.patience.deadline_s(sent.teacher):
                late.append(part)
            if time - sent.due > floor_s:
                self.ledger.on_doubt(sent.teacher)
        for part in late if self.enabled else ():
            if part in self.ledger.sent and part not in self.hedged:
                self._add(part)
        yield from given_up

    def on_student_waits(self, blocking: Iterable[Part], time: float) -> None:
        """For these parts, which are under way: hedge those that another would have sooner."""
        if not self.enabled:
            return
        names = list(self.ledger.names_with_room())  # in order, once for all parts
        for part in blocking:
            sent = self.ledger.sent[part]
            first = sent[0]
            if part in self.hedged or time - first.time < self.patience.floor_s / 4:
                continue
            left = max(first.due - time, time - first.due)  # late by so much: as much more
            have = {s.teacher for s in sent}
            other = next((name for name in names if name not in have), None)
            if other is None:
                return
            if _GAIN * self.ledger.done_in_s(other, part.size) < left:
                self._add(part)

    def on_arrived(self, part: Part) -> None:
        self.hedged.discard(part)

    def sendable(self) -> Iterator[tuple[Part, str]]:
        """Parts with the teacher that takes them now; the others wait for room."""
        waiting = []
        for part in self.to_send:
            if part not in self.ledger.sent:  # answered, or lost and sent again, meanwhile
                self.hedged.discard(part)
                continue
            teacher = self.ledger.pick(but_not=part)
            if teacher is None:
                waiting.append(part)
            else:
                yield part, teacher
        self.to_send = waiting
