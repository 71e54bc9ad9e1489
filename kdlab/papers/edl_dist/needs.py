"""What a student needs of its teachers, and what the coordinator was told of that.

Beyond the paper, whose student is measured once, alone. That measurement may be wrong by a
quarter, and where several students share a pool too small, what one holds and does not need
is what another waits for.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from kdlab.papers.edl_dist.in_flight import InFlight
from kdlab.papers.edl_dist.reader_rules import Teacher
from kdlab.papers.edl_dist.beyond.supply import Supply

_MORE = 1.05  # times the need that was asked for: the coordinator cannot know
_LESS = 0.9  # times the need that was told: that is worth a word
_SLOWER = 4.0  # at most, than they say: one that hangs is replaced by those that answer


@dataclass(slots=True)
class Needs:
    supply: Supply
    ledger: InFlight
    teachers: Mapping[str, Teacher]
    told: float  # samples/s: what the coordinator reckons with
    asked: float = 0.0  # samples/s, when teachers were asked for or released last

    def now(self) -> float:
        """Samples/s to be covered, in the rates that teachers say of themselves."""
        said = sum(t.t_t for t in self.teachers.values() if not t.draining)
        seen = sum(speed.rate for speed in self.ledger.teachers.values())
        slower = min(_SLOWER, max(1.0, said / seen)) if said > 0 and seen > 0 else 1.0
        return self.supply.enough() * slower

    def lacks(self, time: float) -> bool:
        """More is missing than was asked for."""
        return self.supply.lacks_rate(time) and self.now() > _MORE * self.asked

    def has_fallen(self, time: float) -> bool:
        """Others may need what was told too much; known once the student has its pace."""
        supply = self.supply
        paced = supply.paced_at is not None and time >= supply.paced_at + supply.settle_s
        # Never less than `enough`: each look would else add up all teachers.
        less = supply.enough() < _LESS * self.told and self.now() < _LESS * self.told
        return paced and not supply.paused and less

    def tell(self, *, asked: bool) -> float:
        """What is told now; with `asked`, teachers change by it."""
        self.told = self.now()
        if asked:
            self.asked = self.told
        return self.told
