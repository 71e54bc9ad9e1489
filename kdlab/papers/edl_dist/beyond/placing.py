"""Which teacher gets which part: by when this part would be done at this teacher.

Beyond the paper, whose teachers are alike. Whoever would have its part done first comes
first. While teachers that have no room would still be done sooner, a slow one is left the
work after what they can do meanwhile: it works ahead in the plan, and is idle for nobody.
What was lost is needed soon: it may queue at a teacher that has no room.
"""

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import accumulate
from math import inf

from kdlab.papers.edl_dist.batches import Batches
from kdlab.papers.edl_dist.beyond.flow_control import FlowControl
from kdlab.papers.edl_dist.in_flight import InFlight, Part

_IN_TIME = 1.5  # times what a slow teacher takes: a part that is needed so late is for it
_LOOK_EVERY_S = 0.5  # at how long teachers take
_SPARE = 1.1  # of the demand: teachers that reach it are waited for,
_MOST = 0.98  # or that are so much of all: not for the few that have become slow
_LONGEST_S = 30.0  # that is waited for anybody


@dataclass(slots=True)
class Placing:
    ledger: InFlight
    batches: Batches
    supply: FlowControl
    looked_at: float = -inf
    # Seconds that teachers take for a part, the quickest first, and their rates summed.
    quickest: tuple[list[float], list[float]] = field(default_factory=lambda: ([], []))

    def look(self, time: float) -> None:
        """How long teachers take, and the slowest of those that are needed for two parts."""
        if time - self.looked_at < _LOOK_EVERY_S:
            return
        self.looked_at = time
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
        """Seconds until the student misses it, if it never waits before."""
        ahead = self.batches.needed_at(part) - self.supply.pace.trained
        return ahead / max(self.supply.demand, 1e-9)

    def again(self) -> tuple[Part, str] | None:
        """The oldest part that was lost, and who has it done first, with room or without."""
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
        """Who has a part done first, and the first part that others would not have sooner.

        `begins_next`: whether one batch more may be asked for, which it is from then on.
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
        place = min(place, len(open_) - 1)  # for the slowest: the last there may be
        if left and in_s > max(self.supply.reach_s, self.needed_in_s(open_[place])):
            return None  # it would be late, and the quicker ones suffice
        speed = self.ledger.teachers[address]
        size = speed.part(open_[place].size, self.ledger.part_s)
        return self.batches.cut(place, size), address

    def _rate_of_quicker(self, in_s: float) -> float:
        """Samples/s of the teachers that take less for a part."""
        seconds, rates = self.quickest
        place = bisect_left(seconds, in_s)
        return rates[place - 1] if place else 0.0
