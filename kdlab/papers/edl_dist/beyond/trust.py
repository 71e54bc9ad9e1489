"""Whose soft labels can be trained on: some answers are computed twice.

Beyond the paper, which trusts its teachers. A teacher proves its weights and data before it
serves; what goes wrong later (memory, a driver, malice) shows only in its answers. So a
share of them is asked of a second teacher too, and compared by whoever carries this out.
When two differ, a third decides; without a third, each is asked again, and the one that
contradicts itself is found. Two that both stand by what they said: the newer lease goes.
Who is found loses what lies here of its answers; what was trained on of them is named.

Here stands only who is asked what, and who is found; nothing is compared.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from kdlab.events.teachers import LabelsDisagree
from kdlab.papers.edl_dist.in_flight import InFlight, Part
from kdlab.papers.edl_dist.reader_instructions import Check, EndCheck, Instructions
from kdlab.papers.edl_dist.reader_rules import Teacher

_KEPT = 64  # teachers that were held once


class Witness(NamedTuple):
    """A teacher under a lease."""

    teacher: str
    lease: int


@dataclass(slots=True)
class Suspicion:
    """One answer under suspicion."""

    first: Witness  # whose answer counted
    second: Witness  # who was asked to check it
    disputed: bool = False  # the two differ
    confirmed: set[Witness] = field(default_factory=set)  # asked again, and stood by it


@dataclass(slots=True)
class TrainedOn:
    """What was trained on of a teacher's answers under one lease."""

    samples: int = 0
    first: tuple[int, int] | None = None  # (epoch, batch)
    last: tuple[int, int] | None = None


@dataclass(slots=True)
class Trust:
    ledger: InFlight
    teachers: Mapping[str, Teacher]  # of the student, by address
    share: float = 0.001  # of the answers
    due: float = 0.0  # answers that should have been checked by now, and were not
    checked: int = 0
    cases: dict[Part, Suspicion] = field(default_factory=dict)
    # Who answered what of the batches that are not handed over yet, by (epoch, batch).
    kept: dict[tuple[int, int], list[tuple[Part, Witness]]] = field(default_factory=dict)
    trained: dict[Witness, TrainedOn] = field(default_factory=dict)

    def on_answer(self, part: Part, who: Witness, time: float) -> Instructions:
        """An answer counts; perhaps a second teacher is asked for the same."""
        self.kept.setdefault((part.epoch, part.batch), []).append((part, who))
        self.due += self.share
        if self.due < 1.0 or part in self.cases:
            return []
        second = self.ledger.second(part, (who.teacher,), room=True)
        if second is None:
            return []  # the next answer is as good
        asked = Witness(second, self.teachers[second].lease)
        self.open(part, who, asked)
        return [self._ask(part, asked, who, time)]

    def open(self, part: Part, first: Witness, second: Witness) -> None:
        self.due -= 1.0
        self.cases[part] = Suspicion(first, second)

    def _ask(self, part: Part, asked: Witness, first: Witness | None, time: float) -> Check:
        self.ledger.on_check(part, *asked, time)
        given = None if first is None else (first.teacher, first.lease)
        return Check(part, *asked, given)

    def on_compared(
        self, part: Part, asked: Witness, agrees_with: Collection[Witness]
    ) -> Witness | None:
        """An answer came for an open case; who is found to be wrong by it, if anybody.

        It `agrees_with` those of the first two whose kept answers it equals.
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
        # Where all three differ, what counted is not kept.
        first_is_right = set(agrees_with) == {case.first}
        return self._end(part, case.second if first_is_right else case.first)

    def _end(self, part: Part, wrong: Witness | None) -> Witness | None:
        self.checked += 1
        del self.cases[part]
        return wrong

    def go_on(self, part: Part, time: float) -> Instructions:
        """Who decides a disputed case is asked; where nobody can, the case is dropped."""
        decides = self._next_to_ask(part)
        if decides is not None:
            return [self._ask(part, decides, None, time)]
        self.cases.pop(part, None)
        return [EndCheck(part)]

    def _next_to_ask(self, part: Part) -> Witness | None:
        """A third teacher, else one of the two again."""
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
        """A teacher is lost or found out: what it was to decide is dropped, in order."""
        ended = [p for p, c in self.cases.items() if witness in (c.first, c.second)]
        for part in ended:
            del self.cases[part]
        return [EndCheck(part) for part in sorted(ended)]

    def on_delivered(self, key: tuple[int, int]) -> None:
        """A batch is handed over: its answers cannot be taken back, only counted."""
        for part, who in self.kept.pop(key, ()):
            trained = self.trained.setdefault(who, TrainedOn(first=key))
            trained.samples, trained.last = trained.samples + part.size, key

    def take_back(self, who: Witness) -> Iterator[tuple[tuple[int, int], int]]:
        """(epoch, batch) and the samples in it that this teacher answered: they are asked again."""
        for key, answered in list(self.kept.items()):
            parts = [part for part, teacher in answered if teacher == who]
            if parts:
                self.kept[key] = [a for a in answered if a[1] != who]
                self.ledger.on_taken_back(parts)
                yield key, sum(part.size for part in parts)

    def found(self, wrong: Witness, part: Part, again: int) -> LabelsDisagree:
        """Who was found out by a part, and how many samples are asked `again`."""
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
        """Nothing is kept of many that are gone: nobody can find them out any more."""
        if len(self.trained) > _KEPT + 2 * len(self.teachers):
            leases = {Witness(name, t.lease) for name, t in self.teachers.items()}
            self.trained = {who: of for who, of in self.trained.items() if who in leases}
