"""What happens to simulated teachers: they go, become slow, hang, and recover, as machines do."""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

from kdlab.papers.edl_dist.leases import LeaseTable
from kdlab.simulate.clock import Clock
from kdlab.simulate.edl_dist import Move

Way = Literal["there", "back"]
_RENEWAL_S = 1.5  # of a lease, as in a run


@dataclass(slots=True)
class SimulatedTeacher:
    address: str
    t_t: float
    free_at: float = 0.0
    sent_by: dict[Way, float] = field(default_factory=lambda: {"there": 0.0, "back": 0.0})
    alive: bool = True
    times: float = 1.0  # so much longer it takes than when it is well
    hangs_until: float = 0.0

    def is_well(self, time: float) -> bool:
        return self.alive and self.times == 1.0 and self.hangs_until <= time


@dataclass(slots=True)
class Mishaps:
    clock: Clock
    chance: random.Random
    table: LeaseTable
    teachers: Mapping[str, SimulatedTeacher]
    changed: Callable[[], None]  # readers are told what the table says now

    def plan(self, move: Move) -> None:
        for count, what in (
            (move.lose, self._leave),
            (move.slow, self._slow),
            (move.hang, self._hang),
        ):
            for _ in range(count):
                self.clock.after(move.at_s, partial(self._meet, move, what))

    def lose_one(self) -> None:
        self._meet(Move(at_s=0.0), self._leave)

    def _meet(self, move: Move, what: Callable[[Move, SimulatedTeacher], None]) -> None:
        """It happens to one that is well, rather to one that serves a student."""
        well = [t for t in self.teachers.values() if t.is_well(self.clock.now)]
        well = [t for t in well if self._serves(t)] or well
        if not well:
            return
        if move.which == "quickest":
            what(move, max(well, key=lambda t: t.t_t))
        else:
            what(move, well[-1] if move.which == "newest" else self.chance.choice(well))

    def _serves(self, teacher: SimulatedTeacher) -> bool:
        lease = self.table.leases.get(teacher.address)
        return lease is not None and lease.student is not None

    def _leave(self, move: Move, victim: SimulatedTeacher) -> None:
        if move.notice_s:
            self.table.on_leaving(victim.address, self.clock.now)
            self.changed()
        self.clock.after(move.notice_s, partial(self._end, victim))

    def _end(self, victim: SimulatedTeacher) -> None:
        victim.alive = False
        self.table.on_lost(victim.address, self.clock.now)
        self.changed()

    def _slow(self, move: Move, victim: SimulatedTeacher) -> None:
        self._at_rate(victim, move.times)
        if move.for_s is not None:
            self.clock.after(move.for_s, partial(self._at_rate, victim, 1.0))

    def _at_rate(self, victim: SimulatedTeacher, times: float) -> None:
        """It takes so much longer, and says so with the next renewal of its lease."""
        victim.times = times

        def say() -> None:
            self.table.on_rate(victim.address, victim.t_t / victim.times, self.clock.now)
            self.changed()

        self.clock.after(_RENEWAL_S, say)

    def _hang(self, move: Move, victim: SimulatedTeacher) -> None:
        """It computes nothing and renews nothing until it recovers, if it does."""
        victim.hangs_until = self.clock.now + (1e9 if move.for_s is None else move.for_s)
        self.clock.after(self.table.ttl_s, partial(self._expire, victim))
        if move.for_s is not None:
            self.clock.after(move.for_s, partial(self._recover, victim))

    def _expire(self, victim: SimulatedTeacher) -> None:
        if victim.hangs_until > self.clock.now:
            self.table.on_lost(victim.address, self.clock.now, expired=True)
            self.changed()

    def _recover(self, victim: SimulatedTeacher) -> None:
        if victim.alive and not self.table.on_renewed(victim.address, self.clock.now):
            self.table.on_ready(victim.address, victim.t_t, self.clock.now)
            self.changed()
