"""Spot checks of soft labels: some answers are computed twice.

Beyond the paper, which trusts its teachers. A teacher proves its weights and data before it
serves; later faults (memory, a driver, malice) show only in its answers. So a second teacher is
asked for a share of them too, and the loop that executes this compares. When two answers differ,
a third teacher decides. Without a third, each of the two is asked again, and the one that
contradicts itself is wrong; if both repeat their answer, the newer lease ends. A teacher that was
wrong loses its answers that were not trained on; how many were trained on is reported.

This module decides only which teacher is asked and which is wrong; it compares nothing.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from kdlab.events.teachers import LabelsDisagree
from kdlab.papers.edl_dist.in_flight import InFlight, Part
from kdlab.papers.edl_dist.reader_instructions import Check, EndCheck, Instructions
from kdlab.papers.edl_dist.reader_rules import Teacher

_KEPT = 64  # leases that are remembered after they ended


class Witness(NamedTuple):
    """A teacher under a lease."""

    teacher: str
    lease: int


@dataclass(slots=True)
class Suspicion:
    """An open case: one answer under suspicion."""

    first: Witness  # its answer counted
    second: Witness  # it was asked to check that answer
    disputed: bool = False  # the two differ
    # Asked again, and repeated its answer
    confirmed: set[Witness] = field(default_factory=set)


@dataclass(slots=True)
class TrainedOn:
    """The answers of a teacher under one lease that were trained on."""

    samples: int = 0
    first: tuple[int, int] | None = None  # (epoch, batch)
    last: tuple[int, int] | None = None


@dataclass(slots=True)
class Trust:
    ledger: InFlight
    teachers: Mapping[str, Teacher]  # of the student, by address
    share: float = 0.001  # of the answers to check
    due: float = 0.0  # answers that should have been checked by now, and were not
    checked: int = 0  # closed cases
    cases: dict[Part, Suspicion] = field(default_factory=dict)  # open ones
    # Answered parts and their teachers, of batches not delivered yet, by (epoch, batch).
    answers: dict[tuple[int, int], list[tuple[Part, Witness]]] = field(default_factory=dict)
    trained: dict[Witness, TrainedOn] = field(default_factory=dict)

    def on_answer(self, part: Part, who: Witness, time: float) -> Instructions:
        """Record an answer that counts; perhaps ask a second teacher for the same part."""
        self.answers.setdefault((part.epoch, part.batch), []).append((part, who))
        self.due += self.share
        if self.due < 1.0 or part in self.cases:
            return []
        second = self.ledger.second(part, (who.teacher,), room=True)
        if second is None:
            return []  # the next answer will do as well
        asked = Witness(second, self.teachers[second].lease)
        self.open_case(part, who, asked)
        return [self._ask(part, asked, who, time)]

    def open_case(self, part: Part, first: Witness, second: Witness) -> None:
        self.due -= 1.0
        self.cases[part] = Suspicion(first, second)

    def _ask(self, part: Part, asked: Witness, first: Witness | None, time: float) -> Check:
        self.ledger.on_check(part, *asked, time)
        latest = None if first is None else (first.teacher, first.lease)
        return Check(part, *asked, latest)

    def on_compared(
        self, part: Part, asked: Witness, agrees_with: Collection[Witness]
    ) -> Witness | None:
        """Judge an open case by a new answer; return the teacher that is wrong, if it shows.

        `agrees_with` has those of the first two whose stored answers the new one equals.
        """
        case = self.cases.get(part)
        if case is None:
            return None
        both = (case.first, case.second)
        if not case.disputed:  # the second teacher's answer
            case.disputed = case.first not in agrees_with
            return None if case.disputed else self._end(part, None)
        if asked in both:  # asked again
            if asked not in agrees_with:
                return self._end(part, asked)
            case.confirmed.add(asked)
            newer = max(both, key=lambda w: w.lease)
            return self._end(part, newer) if case.confirmed == set(both) else None
        # Where all three differ, the answer that counted is taken back.
        first_is_right = set(agrees_with) == {case.first}
        return self._end(part, case.second if first_is_right else case.first)

    def _end(self, part: Part, wrong: Witness | None) -> Witness | None:
        self.checked += 1
        del self.cases[part]
        return wrong

    def continue_case(self, part: Part, time: float) -> Instructions:
        """Ask the teacher that decides a disputed case; without one, drop the case."""
        decides = self._next_to_ask(part)
        if decides is not None:
            return [self._ask(part, decides, None, time)]
        self.cases.pop(part, None)
        return [EndCheck(part)]

    def _next_to_ask(self, part: Part) -> Witness | None:
        """A third teacher, else one of the first two again."""
        case = self.cases.get(part)
        if case is None or not case.disputed:
            return None
        usable = [Witness(a, t.lease) for a, t in self.teachers.items() if not t.draining]
        known = {case.first.teacher, case.second.teacher}
        third = [w for w in usable if w.teacher not in known and not case.confirmed]
        both = [
            w for w in (case.first, case.second) if w in usable and w not in case.confirmed
        ]
        return next(iter(third + both), None)

    def on_gone(self, witness: Witness) -> Instructions:
        """Drop the open cases of a teacher that is lost or was wrong, in order."""
        ended = [p for p, c in self.cases.items() if witness in (c.first, c.second)]
        for part in ended:
            del self.cases[part]
        return [EndCheck(part) for part in sorted(ended)]

    def on_delivered(self, key: tuple[int, int]) -> None:
        """Count the answers of a delivered batch: they can no longer be taken back."""
        for part, who in self.answers.pop(key, ()):
            trained = self.trained.setdefault(who, TrainedOn(first=key))
            trained.samples, trained.last = trained.samples + part.size, key

    def take_back(self, who: Witness) -> Iterator[tuple[tuple[int, int], int]]:
        """Ask again for a teacher's parts; yield (epoch, batch) and their samples in it."""
        for key, answered in list(self.answers.items()):
            parts = [part for part, teacher in answered if teacher == who]
            if parts:
                self.answers[key] = [a for a in answered if a[1] != who]
                self.ledger.on_taken_back(parts)
                yield key, sum(part.size for part in parts)

    def on_wrong(self, wrong: Witness, part: Part, again: int) -> LabelsDisagree:
        """Close the account of a wrong teacher: its event, with the samples asked `again`."""
        used = self.trained.pop(wrong, TrainedOn())
        liar = self.teachers.get(wrong.teacher)
        return LabelsDisagree(
            teacher=liar.name if liar else wrong.teacher,
            epoch=part.epoch,
            batch=part.batch,
            sent_again=again,
            trained=used.samples,
            first_trained=used.first and [*used.first],
            last_trained=used.last and [*used.last],
        )

    def prune(self) -> None:
        """Forget ended leases, once they are many: no check can reach them any more."""
        if len(self.trained) > _KEPT + 2 * len(self.teachers):
            leases = {Witness(name, t.lease) for name, t in self.teachers.items()}
            self.trained = {
                who: record for who, record in self.trained.items() if who in leases
            }
