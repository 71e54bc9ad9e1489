"""The placing of parts on teachers: by when this part would be done at this teacher.

Beyond the paper, whose teachers are alike (3.2). The teacher that would have its part done first
comes first. While teachers without room would still be done sooner, a slow one gets the work after
what they can do meanwhile: it works ahead in the plan and is not idle. A lost part is needed soon,
so it may queue at a teacher without room.
"""

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import accumulate
from math import inf

from kdlab.papers.edl_dist.batches import Batches
from kdlab.papers.edl_dist.beyond.flow_control import FlowControl
from kdlab.papers.edl_dist.in_flight import InFlight, Part

_IN_TIME = 1.5  # times what a slow teacher takes: parts needed later than that are for it
_UPDATE_EVERY_S = 0.5  # of how long teachers take
_SPARE = 1.1  # of the demand: the quickest teachers that reach it are waited for,
_MOST = 0.98  # or those with this share of all rates: not the few that have become slow
_LONGEST_S = 30.0  # that any teacher is waited for


@dataclass(slots=True)
class Placing:
    ledger: InFlight
    batches: Batches
    supply: FlowControl
    updated_at: float = -inf  # seconds
    # Seconds that teachers take for a part, the quickest first, and their rates summed.
    quickest: tuple[list[float], list[float]] = field(default_factory=lambda: ([], []))

    def update(self, time: float) -> None:
        """Update how long teachers take for a part, and the slowest needed one for two."""
        if time - self.updated_at < _UPDATE_EVERY_S:
            return
        self.updated_at = time
        supply, part_s = self.supply, self.ledger.part_s
        needed, supply.reach_s = min(_SPARE * supply.demand, _MOST * supply.capacity), 0.0
        speeds = [
            (speed.part(speed.most, part_s) / max(speed.rate, 1e-9), speed)
            for speed in self.ledger.teachers.values()
        ]
        takes = sorted((speed.way_s + part, speed.rate) for part, speed in speeds)
        self.quickest = [t for t, _ in takes], list(accumulate(rate for _, rate in takes))
        for seconds, rate in sorted((s.way_s + 2 * part, s.rate) for part, s in speeds):
            supply.reach_s = min(seconds, _LONGEST_S)
            needed -= rate
            if needed <= 0:
                return

    def needed_in_s(self, part: Part) -> float:
        """Seconds until the student misses a part, if it never waits before."""
        ahead = self.batches.needed_at(part) - self.supply.pace.trained
        return ahead / max(self.supply.demand, 1e-9)

    def again(self) -> tuple[Part, str] | None:
        """Take the oldest lost part (3.4, case 3) and the teacher that has it done first.

        The teacher may have no room.
        """
        waiting, free, busy = self.ledger.waiting, self.ledger.free(), self.ledger.busy()
        if not waiting or (free is None and busy is None):
            return None
        needed_in_s = self.needed_in_s(waiting[0])
        sooner = busy is not None and (free is None or busy[0] < free[0])
        if free is not None and (not sooner or free[0] <= needed_in_s):
            soonest = free
        elif busy is not None and (free is not None or busy[0] > needed_in_s):
            soonest = busy
        else:
            return None
        part = self.ledger.next_waiting(soonest[1])
        return None if part is None else (part, soonest[1])

    def fresh(self, begins_next: Callable[[], bool]) -> tuple[Part, str] | None:
        """Cut the first part that no other teacher would have sooner; return it with its teacher.

        `begins_next` begins one batch more where that is allowed, and returns whether it did.
        """
        free, busy = self.ledger.free(), self.ledger.busy()
        if free is None:
            return None
        in_s, address = free
        open_, left = self.batches.open, 0.0
        if busy is not None and busy[0] < in_s:
            left = (in_s - busy[0]) * self._rate_of_quicker(in_s)
        place = 0
        while (place < len(open_) or begins_next()) and open_:
            rest = open_[min(place, len(open_) - 1)]
            if left < rest.size or self.needed_in_s(rest) >= _IN_TIME * in_s:
                break
            left -= rest.size
            place += 1
        if not open_:
            return None
        place = min(place, len(open_) - 1)  # for the slowest: the last open batch
        if left and in_s > max(self.supply.reach_s, self.needed_in_s(open_[place])):
            return None  # it would be late, and quicker teachers suffice
        speed = self.ledger.teachers[address]
        size = speed.part(open_[place].size, self.ledger.part_s)
        return self.batches.cut(place, size), address

    def _rate_of_quicker(self, in_s: float) -> float:
        """Samples/s of the teachers that take less time for a part."""
        seconds, rates = self.quickest
        place = bisect_left(seconds, in_s)
        return rates[place - 1] if place else 0.0
