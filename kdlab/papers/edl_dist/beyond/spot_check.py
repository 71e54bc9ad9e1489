"""Some answers are computed twice: whether a teacher's soft labels are the right ones.

Beyond the paper, which trusts its teachers. A teacher proves its weights and data before it
serves; what goes wrong later (memory, a driver, malice) shows only in its answers. So a
share of them is asked of a second teacher too, and compared by whoever carries this out.
When two differ, a third decides; without a third, each is asked again, and the one that
contradicts itself is found. Two that both stand by what they said: the newer lease goes.

Here stands only who is asked what, and who is found; nothing is compared.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from kdlab.papers.edl_dist.in_flight import Part


class Witness(NamedTuple):
    """A teacher under a lease."""

    teacher: str
    lease: int


@dataclass(slots=True)
class Suspicion:
    """One answer under suspicion."""

    part: Part
    first: Witness  # whose answer counted
    second: Witness  # who was asked to check it
    disputed: bool = False  # the two differ
    confirmed: set[Witness] = field(default_factory=set)  # asked again, and stood by it


@dataclass(slots=True)
class SpotCheck:
    share: float = 0.001  # of the answers
    due: float = 0.0  # answers that should have been checked by now, and were not
    checked: int = 0
    cases: dict[Part, Suspicion] = field(default_factory=dict)

    def on_answer(self) -> bool:
        """Whether this answer is to be checked."""
        self.due += self.share
        return self.due >= 1.0

    def open(self, part: Part, first: Witness, second: Witness) -> None:
        self.due -= 1.0
        self.cases[part] = Suspicion(part, first, second)

    def on_compared(
        self, part: Part, asked: Witness, agrees_with: frozenset[Witness]
    ) -> Witness | None:
        """An answer came for an open case; who is found to be wrong by it, if anybody.

        It `agrees_with` those of the first two whose kept answers it equals.
        """
        case = self.cases.get(part)
        if case is None:
            return None
        if not case.disputed:  # the second teacher's answer
            if case.first in agrees_with:
                self.checked += 1
                del self.cases[part]
            else:
                case.disputed = True
            return None
        if asked in (case.first, case.second):  # asked again
            if asked not in agrees_with:
                return self._found(case, asked)
            case.confirmed.add(asked)
            if case.confirmed == {case.first, case.second}:
                return self._found(
                    case, max(case.first, case.second, key=lambda w: w.lease)
                )
            return None
        # Where all three differ, what counted is not kept.
        return self._found(case, case.second if agrees_with == {case.first} else case.first)

    def next_to_ask(self, part: Part, usable: Mapping[str, int]) -> Witness | None:
        """Who could decide a disputed case: a third teacher, else one of the two again.

        `usable` are the leases of the teachers that could be asked, by address.
        """
        case = self.cases.get(part)
        if case is None or not case.disputed:
            return None
        known = {case.first.teacher, case.second.teacher}
        for teacher, lease in usable.items():
            if teacher not in known and not case.confirmed:
                return Witness(teacher, lease)
        for witness in (case.first, case.second):
            if (
                witness not in case.confirmed
                and usable.get(witness.teacher) == witness.lease
            ):
                return witness
        return None

    def on_gone(self, witness: Witness) -> list[Part]:
        """A teacher is lost or found out: what it was to decide is dropped, in order."""
        ended = [p for p, c in self.cases.items() if witness in (c.first, c.second)]
        for part in ended:
            del self.cases[part]
        return sorted(ended)

    def drop(self, part: Part) -> None:
        self.cases.pop(part, None)

    def _found(self, case: Suspicion, wrong: Witness) -> Witness:
        self.checked += 1
        del self.cases[case.part]
        return wrong
