"""From which teacher the soft labels come: of what lies here, and of what was trained on.

A teacher that is found to lie (spot_check.py) loses what lies here; what was trained on is named.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from kdlab.papers.edl_dist.in_flight import Part
from kdlab.papers.edl_dist.reader_rules import Teacher
from kdlab.papers.edl_dist.beyond.spot_check import Witness

_KEPT = 64  # teachers that were held once


@dataclass(slots=True)
class TrainedOn:
    """What was trained on of a teacher's answers under one lease."""

    samples: int = 0
    first: tuple[int, int] | None = None  # (epoch, batch)
    last: tuple[int, int] | None = None


@dataclass(slots=True)
class Provenance:
    # Who answered what of the batches that are not handed over yet, by (epoch, batch).
    kept: dict[tuple[int, int], list[tuple[Part, Witness]]] = field(default_factory=dict)
    trained: dict[Witness, TrainedOn] = field(default_factory=dict)

    def on_answer(self, part: Part, who: Witness) -> None:
        self.kept.setdefault((part.epoch, part.batch), []).append((part, who))

    def on_delivered(self, key: tuple[int, int]) -> None:
        """A batch is handed over: its answers cannot be taken back, only counted."""
        for part, who in self.kept.pop(key, ()):
            trained = self.trained.setdefault(who, TrainedOn(first=key))
            trained.samples, trained.last = trained.samples + part.size, key

    def prune(self, held: Mapping[str, Teacher]) -> None:
        """Nothing is kept of many that are gone: nobody can find them out any more."""
        if len(self.trained) > _KEPT + 2 * len(held):
            leases = {Witness(name, teacher.lease) for name, teacher in held.items()}
            self.trained = {who: of for who, of in self.trained.items() if who in leases}

    def take_back(self, who: Witness) -> Iterator[tuple[tuple[int, int], list[Part]]]:
        """(epoch, batch) and the parts in it that this teacher answered; they are forgotten."""
        for key, answered in list(self.kept.items()):
            parts = [part for part, teacher in answered if teacher == who]
            if parts:
                self.kept[key] = [a for a in answered if a[1] != who]
                yield key, parts
