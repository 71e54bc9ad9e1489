"""Every sample's soft label once: at-least-once work, exactly-once delivery.

Section 3.4 of EDL-Dist, the three ways a teacher is lost:
    case 1  before it was scheduled            nothing is in flight, nothing to do
    case 2  scheduled, nothing in flight       nothing to re-send
    case 3  scheduled, an answer is awaited    its parts are sent to another teacher

A part is a range of a batch: batches are cut to what a teacher computes best at once. It
is WAITING, then SENT to a teacher under that teacher's lease epoch, then DONE. A part
that is overdue may be out with a second teacher too (a hedge); the first answer counts.
A late answer (of a teacher given up on, or to a part answered by somebody else) is
dropped by part and lease epoch.
"""

from bisect import insort
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple


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
class Sent:
    teacher: str
    lease: int  # lease epoch of the teacher when it was sent
    time: float


@dataclass(slots=True)
class InFlight:
    """Mutable, but pure: its state depends on the calls alone."""

    limit: int = 2  # parts per teacher: one computed, one queued hides the way there
    waiting: list[Part] = field(default_factory=list)  # lost, sent first; sorted
    sent: dict[Part, list[Sent]] = field(default_factory=dict)
    # Answered by somebody else meanwhile: the teacher still has it, and no room for more.
    overdue: dict[tuple[Part, str, int], Sent] = field(default_factory=dict)
    loads: dict[str, int] = field(default_factory=dict)  # parts out per teacher
    owed: dict[str, int] = field(default_factory=dict)  # samples out per teacher
    samples: int = 0  # out or waiting to be sent again; a hedge counts once
    resends: int = 0
    hedges: int = 0
    late_answers: int = 0

    def pick(
        self, teachers: Mapping[str, float], but_not: Part | None = None
    ) -> str | None:
        """The teacher that would be done first, None if all are at their limit.

        Args:
            teachers: t_t in samples/s by name.
            but_not: leave out those that have this part already.
        """
        have = {s.teacher for s in self.sent.get(but_not, ())} if but_not else set()
        best: tuple[float, str] | None = None
        for name, t_t in teachers.items():
            if self.loads.get(name, 0) >= self.limit or name in have:
                continue
            entry = (self.owed.get(name, 0) / max(t_t, 1e-9), name)
            if best is None or entry < best:
                best = entry
        return best[1] if best else None

    def next_waiting(self, largest: int) -> Part | None:
        """The oldest lost part, cut again if this teacher takes less at once."""
        if not self.waiting:
            return None
        part = self.waiting.pop(0)
        if part.size > largest:
            insort(self.waiting, part._replace(start=part.start + largest))
            part = part._replace(stop=part.start + largest)
        return part

    def on_sent(self, part: Part, teacher: str, lease: int, time: float) -> None:
        """A fresh part, or one that `next_waiting` gave."""
        if part in self.sent:
            raise ValueError(f"{part} is out already, with {self.sent[part]}")
        self._out(part, Sent(teacher, lease, time))

    def on_fresh(self, part: Part) -> None:
        """A batch is begun: all of it counts from here on, out or not."""
        self.samples += part.size

    def on_hedged(self, part: Part, teacher: str, lease: int, time: float) -> None:
        self.hedges += 1
        self._out(part, Sent(teacher, lease, time))

    def on_answer(self, part: Part, teacher: str, lease: int) -> Sent | None:
        """The request it answers, exactly once per part; None for a late answer."""
        outs = self.sent.get(part, [])
        mine = next((o for o in outs if (o.teacher, o.lease) == (teacher, lease)), None)
        if mine is None:
            self.late_answers += 1
            if self.overdue.pop((part, teacher, lease), None) is not None:
                self._count(teacher, part, -1)
            return None
        del self.sent[part]
        self.samples -= part.size
        self._count(teacher, part, -1)
        for other in outs:
            if other is not mine:
                self.overdue[part, other.teacher, other.lease] = other
        return mine

    def on_teacher_lost(self, teacher: str, lease: int) -> int:
        """Case 3 (or 2, when the answer is 0): how many parts must be sent again.

        Only what was sent under that lease epoch: the teacher may have come back since. A
        part that another teacher has too is not sent again.
        """
        lost = 0
        for key in [k for k in self.overdue if k[1:] == (teacher, lease)]:
            del self.overdue[key]
            self._count(teacher, key[0], -1)
        for part, outs in list(self.sent.items()):
            kept = [o for o in outs if (o.teacher, o.lease) != (teacher, lease)]
            if len(kept) == len(outs):
                continue
            for out in outs:
                if out not in kept:
                    self._count(out.teacher, part, -1)
            if kept:
                self.sent[part] = kept
            else:
                del self.sent[part]
                insort(self.waiting, part)
                lost += 1
        self.resends += lost
        return lost

    def outstanding(self) -> Iterator[tuple[Part, Sent]]:
        """Every request that has no answer yet, those answered by others included."""
        for part, outs in self.sent.items():
            for out in outs:
                yield part, out
        for (part, _, _), out in self.overdue.items():
            yield part, out

    def _out(self, part: Part, out: Sent) -> None:
        self.sent.setdefault(part, []).append(out)
        self._count(out.teacher, part, 1)

    def _count(self, teacher: str, part: Part, sign: int) -> None:
        self.loads[teacher] = self.loads.get(teacher, 0) + sign
        self.owed[teacher] = self.owed.get(teacher, 0) + sign * part.size
        if not self.loads[teacher]:
            del self.loads[teacher], self.owed[teacher]
