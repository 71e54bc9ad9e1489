"""Who is a teacher and whose: the coordinator's table (EDL-Dist, sections 3.1, 3.4).

Its state changes by `MOVES` alone; docs/edl_dist.md draws it.

A teacher is registered before its model is loaded (3.1), so a registered one counts as
alive and is never handed out. A draining one answers what it was asked and gets no more.
A share carries a lease epoch that grows with every change of owner: an answer from an
earlier epoch is not accepted. Time is a field of every event.

Every change of a student's teachers is kept under a version, so that a reader is told
what is new and not the whole list (`delta`).

Several students (the paper has them, and no word on who comes first): a free teacher
goes to the one whose need is covered least, the longest searching among equals (3.4,
last paragraph). Without a free one, those that are held are shared (fair_shares.py). A
student of priority 2 counts as covered half as much as one of priority 1 with the same
share; nobody is brought below its `floor` of teachers for somebody else who has as much.

A complaint names the lease it is about: one that comes late, when the teacher is another
student's, changes nothing.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from kdlab.papers.edl_dist.fair_shares import (
    CRUMB,
    Demand,
    Lease,
    LeaseState,
    Share,
    SharedTeacher,
    next_grant,
    of_free,
)
from kdlab.papers.edl_dist.teacher_info import TeacherInfo

Fate = Literal["given", "draining", "left", "lost", "expired", "released", "moved"]
LeaseMove = Literal["ready", "assign", "release", "leave"]

# What happens to a teacher in a state, and the state after it; in any other it changes nothing.
# One whose connection is lost or whose TTL has passed is gone, whatever its state (3.1).
MOVES: dict[tuple[LeaseState, LeaseMove], LeaseState] = {
    ("registered", "ready"): "free",
    ("registered", "leave"): "draining",
    ("free", "assign"): "assigned",
    ("free", "leave"): "draining",
    ("assigned", "release"): "free",
    ("assigned", "leave"): "draining",
}

_KEPT = 4096  # changes remembered per student; a reader further behind gets the whole list
_EXTRA_S = 30.0  # one teacher more than its need is a student's so long, while it asks
_REBUILDS = 1.25  # times its need, while there are free ones
_STEPS = 16  # of a match for each student, besides one for each teacher


@dataclass(frozen=True, slots=True)
class Delta:
    """What changed for one student after a version."""

    version: int
    full: bool  # `held` is the whole list; otherwise only what is new or draining
    held: tuple[Lease, ...]
    gone: dict[str, Fate]  # teacher -> how it went; the last way, if it came and went


@dataclass(slots=True)
class LeaseTable:
    ttl_s: float = 6.0
    # Epochs of a table that starts afresh must not repeat those of the one before: its
    # owner passes a number that only grows, such as milliseconds since 1970.
    next_epoch: int = 1
    leases: dict[str, SharedTeacher] = field(default_factory=dict)
    demands: dict[str, Demand] = field(default_factory=dict)
    version: int = 0  # grows with every change a student could care about
    changes: dict[str, deque[tuple[int, str, Fate]]] = field(default_factory=dict)
    touched: set[str] = field(default_factory=set)  # rows changed; a store empties it

    # Teachers

    def on_registered(self, teacher: str, time: float) -> None:
        if teacher in self.leases:  # it loads another model: nobody's until it is ready
            self.on_lost(teacher, time)
        self.leases[teacher] = SharedTeacher(teacher, "registered", time, self.ttl_s)
        self.touched.add(teacher)

    def on_ready(
        self,
        teacher: str,
        t_t: float,
        time: float,
        ttl_s: float | None = None,
        info: TeacherInfo | None = None,
    ) -> None:
        """The model is loaded. A teacher with long batches may have a longer TTL."""
        if teacher not in self.leases:
            self.on_registered(teacher, time)
        row = self.leases[teacher]
        row.renewed_at, row.ttl_s = time, ttl_s or self.ttl_s
        row.info = info
        self._move(row, "ready")
        self._set_rate(row, t_t)
        self._match(time)  # also when one that is held reports another rate

    def on_renewed(self, teacher: str, time: float) -> bool:
        """False tells the teacher that it is not known (any more): register again."""
        row = self.leases.get(teacher)
        if row is None:
            return False
        row.renewed_at = time  # 3.1: a heartbeat prolongs the TTL
        return True

    def on_info(self, teacher: str, info: TeacherInfo) -> None:
        """It says something else of itself: its students hear of another engine at once."""
        row = self.leases[teacher]
        before, row.info = row.info, info
        if before is not None and before.engine != info.engine:
            self._tell_anew(row)

    def on_rate(self, teacher: str, t_t: float, time: float) -> None:
        """A teacher measures another t_t than before; its students may need more."""
        if teacher in self.leases:
            self._set_rate(self.leases[teacher], t_t)
            self._match(time)

    def on_leaving(self, teacher: str, time: float) -> bool:
        """It said goodbye: it answers what it was asked, and gets nothing new."""
        row = self.leases.get(teacher)
        if row is None or row.state == "draining":
            return False
        self._detach(row)
        self._move(row, "leave")
        for student in row.shares:
            self._note(student, teacher, "draining")
        self._match(time)
        return True

    def on_lost(self, teacher: str, time: float, *, expired: bool = False) -> bool:
        """The connection broke, or the TTL passed. True if it was known."""
        row = self.leases.pop(teacher, None)
        if row is None:
            return False
        self._detach(row)
        how: Fate = "left" if row.state == "draining" else "lost"
        for student in row.shares:
            self._note(student, teacher, "expired" if expired else how)
        self._match(time)
        return True

    def expired(self, time: float) -> list[str]:
        """Teachers silent for longer than their TTL; pass each to `on_lost`.

        One that still loads its model is silent and nobody's: its connection says whether
        it lives (case 1 of 3.4: before it is scheduled, its loss is ignored).
        """
        return [
            row.teacher
            for row in self.leases.values()
            if row.state != "registered" and time - row.renewed_at > row.ttl_s
        ]

    # Students

    def on_demand(
        self,
        student: str,
        t_s: float,
        time: float,
        at_most: int | None = None,
        priority: float = 1.0,
        floor: int = 0,
    ) -> None:
        """Algorithm 1, line 1: cover the rate t_s with teachers."""
        demand = self.demands.get(student)
        if demand is None:
            # 3.4: searching from now on
            demand = self.demands[student] = Demand(student, t_s, since=time)
            self.changes.setdefault(student, deque(maxlen=_KEPT))
        demand.t_s = demand.need = t_s
        demand.at_most = at_most
        demand.priority, demand.floor = priority, floor
        self._match(time)

    def on_extra(self, student: str, time: float, need: float = 0.0) -> bool:
        """Algorithm 1, line 8: one additional teacher, as soon as one is free.

        With `need`, in samples/s, as many as cover that: what it said before is past. Returns
        whether one came now; if not, the student is searching.
        """
        demand = self.demands.get(student)
        if demand is None:  # not announced yet, or given up for silence
            return False
        before = len(demand.held)
        demand.need, demand.asked_at = need or demand.need, time
        # A rate just above what it has is covered by one more teacher.
        demand.t_s = max(demand.need, demand.rate * (1 + 1e-6) + 1e-6)
        self._match(time)
        # It starved: what it has stored is rebuilt with some that nobody else misses.
        while (missing := _REBUILDS * demand.need - demand.rate) > 0:
            grant = of_free([*self._ready()], demand, missing)
            if grant is None:
                break
            self._give(grant.row, demand, grant.part)
        return len(demand.held) > before

    def on_need(self, student: str, need: float, time: float) -> None:
        """It needs less than it said: what it has beyond is for whoever falls short."""
        if (demand := self.demands.get(student)) is not None:
            demand.t_s = demand.need = need
            self._match(time)

    def on_release(
        self, student: str, teacher: str, epoch: int, need: float | None, time: float
    ) -> None:
        """A student can do without this lease; `need` samples/s must stay covered.

        None is as many as before: a request failed, and the same teacher may come again.
        """
        row = self._held(student, teacher, epoch)
        if row is None or row.state != "assigned":
            return
        demand = self.demands.get(student)
        if demand is not None and need is not None:
            # What is left covers the student's needs as it sees them now.
            rest = max(0.0, demand.rate - row.rate_of(student))
            demand.t_s = demand.need = min(rest, need)
        self._take(row, student, 1.0, "released")
        self._match(time)

    def on_complaint(self, student: str, teacher: str, epoch: int, time: float) -> bool:
        """Its answers cannot be used. True if it is this student's, under this lease."""
        held = self._held(student, teacher, epoch) is not None
        return held and self.on_lost(teacher, time)

    def _held(self, student: str, teacher: str, epoch: int) -> SharedTeacher | None:
        row = self.leases.get(teacher)
        share = None if row is None else row.shares.get(student)
        return row if share is not None and share.epoch == epoch else None

    def on_student_gone(self, student: str, time: float) -> None:
        self.demands.pop(student, None)
        for row in self.leases.values():
            if row.shares.pop(student, None) is not None:  # draining ones too
                self._move(row, "assign" if row.shares else "release")
        self.changes.pop(student, None)
        self._match(time)

    def on_restored(
        self, rows: list[SharedTeacher], demands: list[Demand], next_epoch: int, time: float
    ) -> None:
        """Rows that a store kept: a coordinator that starts again goes on with them.

        A lease kept its owner and its epoch, so answers under way stay good. What no
        student of the store claims is free.
        """
        self.next_epoch = max(self.next_epoch, next_epoch)
        for kept in demands:
            self.on_demand(
                kept.student, kept.t_s, kept.since, kept.at_most, kept.priority, kept.floor
            )
        for row in rows:
            row.renewed_at = time
            self.leases[row.teacher] = row
            for student in [name for name in row.shares if name not in self.demands]:
                del row.shares[student]
            self._move(row, "assign" if row.shares else "release")
            if row.state == "assigned":
                for student in row.shares:
                    self.demands[student].held[row.teacher] = row
                    self._count(student)
                    self._note(student, row.teacher, "given")
        self._match(time)

    # Looks

    @property
    def free(self) -> dict[str, float]:
        """Samples/s that nobody has: of whole teachers, and what is left of others."""
        return {row.teacher: rest * row.t_t for row in self._ready() if (rest := row.rest)}

    def _ready(self) -> Iterator[SharedTeacher]:
        """Those that may be given away."""
        return (r for r in self.leases.values() if r.state in ("free", "assigned"))

    def held_by(self, student: str) -> list[Lease]:
        demand = self.demands.get(student)
        return [row.lease(student) for row in demand.held.values()] if demand else []

    def delta(self, student: str, version: int) -> Delta:
        """What a reader that knows `version` has to be told; -1 knows nothing."""
        noted = self.changes.get(student, deque())
        if version < 0 or (len(noted) == noted.maxlen and version < noted[0][0]):
            return Delta(self.version, True, tuple(self.held_by(student)), {})
        held, gone = dict[str, Lease](), dict[str, Fate]()
        for at, teacher, change in noted:
            if at <= version:
                continue
            row = self.leases.get(teacher)
            if change in ("given", "draining"):
                if row is not None and student in row.shares:
                    held[teacher] = row.lease(student)
            else:
                gone[teacher] = change
        return Delta(self.version, False, tuple(held.values()), gone)

    def version_of(self, student: str) -> int:
        """Version of the last change that concerns this student."""
        noted = self.changes.get(student)
        return noted[-1][0] if noted else 0

    # Matching

    def _match(self, time: float) -> None:
        """Free teachers to the students that search; then, fair shares."""
        all_rate = sum(row.t_t for row in self._ready())
        for demand in self.demands.values():
            demand.all_rate = all_rate
            if time - demand.asked_at > _EXTRA_S:
                demand.t_s = demand.need
        # Each turn gives something to one student. What so many have not evened out is
        # little, and the next event goes on with it.
        for _ in range(len(self.leases) + _STEPS * len(self.demands)):
            grant = next_grant([*self._ready()], self.demands.values())
            if grant is None:
                return
            if grant.by is not None:
                self._take(grant.row, grant.by.student, grant.part, "moved")
            self._give(grant.row, grant.to, grant.part)

    def _give(self, row: SharedTeacher, demand: Demand, part: float) -> None:
        """So much of a teacher more; under a lease of its own, where it had none."""
        share = row.shares.get(demand.student)
        if share is None:
            share = row.shares[demand.student] = Share(self.next_epoch, 0.0)
            self.next_epoch += 1
        share.part = min(1.0, share.part + part)
        demand.held[row.teacher] = row
        self._move(row, "assign")
        self._count(demand.student)
        self._note(demand.student, row.teacher, "given")

    def _take(self, row: SharedTeacher, student: str, part: float, how: Fate) -> None:
        """So much of a teacher less; all of it where less than a crumb is left."""
        share = row.shares[student]
        share.part -= part
        if share.part < CRUMB:
            del row.shares[student]
            if (demand := self.demands.get(student)) is not None:
                demand.held.pop(row.teacher, None)
        self._move(row, "assign" if row.shares else "release")
        self._count(student)
        self._note(student, row.teacher, "given" if student in row.shares else how)

    def _detach(self, row: SharedTeacher) -> None:
        """Out of its students' accounts; the row stays."""
        self.touched.add(row.teacher)
        for student in row.shares:
            if (demand := self.demands.get(student)) is not None:
                demand.held.pop(row.teacher, None)
                self._count(student)

    def _move(self, row: SharedTeacher, move: LeaseMove) -> None:
        self.touched.add(row.teacher)
        row.state = MOVES.get((row.state, move), row.state)

    def _set_rate(self, row: SharedTeacher, t_t: float) -> None:
        row.t_t = t_t
        for student in row.shares:
            self._count(student)
        self._tell_anew(row)

    def _tell_anew(self, row: SharedTeacher) -> None:
        if row.state == "assigned":
            for student in row.shares:
                self._note(student, row.teacher, "given")

    def _count(self, student: str) -> None:
        demand = self.demands.get(student)
        if demand is not None:
            demand.rate = sum(row.rate_of(student) for row in demand.held.values())

    def _note(self, student: str, teacher: str, change: Fate) -> None:
        self.version += 1
        noted = self.changes.get(student)
        if noted is not None:
            noted.append((self.version, teacher, change))
