"""The coordinator's table of teachers and their leases (EDL-Dist, sections 3.1 and 3.4).

The state of a teacher changes by `MOVES` alone; docs/edl_dist.md draws it:

    state       meaning                                  move     next state
    ----------  ---------------------------------------  -------  ----------
    registered  alive, loads its model (3.1)             ready    free
                                                         leave    draining
    free        waits for a student that searches (3.4)  assign   assigned
                                                         leave    draining
    assigned    one or several students have a share     release  free
                                                         leave    draining
    draining    answers what it owes, gets no more
    any state   its connection broke or its TTL passed   lost     (gone)

A teacher is registered before its model is loaded (3.1), so a registered one counts as alive and
is never assigned. A share carries a lease epoch that grows with every change of owner: an answer
from an earlier epoch is not accepted. Time is a field of every event.

Each change of a student's teachers has a version, so that a reader gets what is new and not the
whole list (`delta`).

The paper has several students and does not say which comes first. Here a free teacher goes to the
student whose need is covered least, among equals to the one that searches longest (3.4). Without
a free teacher, those that are held are shared (fair_shares.py). A student of priority 2 counts as
covered half as much as one of priority 1 with the same share. No student is brought below its
`floor` of teachers for another one that has as much.
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
    grant_free,
    next_grant,
)
from kdlab.papers.edl_dist.teacher_info import TeacherInfo

Fate = Literal["given", "draining", "left", "lost", "expired", "released", "moved"]
LeaseMove = Literal["ready", "assign", "release", "leave"]

# The next state by state and move; in any other state a move changes nothing.
MOVES: dict[tuple[LeaseState, LeaseMove], LeaseState] = {
    ("registered", "ready"): "free",
    ("registered", "leave"): "draining",
    ("free", "assign"): "assigned",
    ("free", "leave"): "draining",
    ("assigned", "release"): "free",
    ("assigned", "leave"): "draining",
}

_KEPT = 4096  # changes kept for each student; a reader further behind gets the whole list
_EXTRA_S = 30.0  # a student that asks has one teacher more than its need for this time
_REBUILDS = 1.25  # times its need, while there are free teachers
_STEPS = 16  # grants of a match for each student, besides one for each teacher


@dataclass(frozen=True, slots=True)
class Delta:
    """Changes of one student's teachers after a version."""

    version: int  # of the newest change
    full: bool  # `held` is the whole list; otherwise only new or draining leases
    held: tuple[Lease, ...]
    gone: dict[str, Fate]  # teacher -> how it went; the last way, if it came and went


@dataclass(slots=True)
class LeaseTable:  # 3.1: the service manager and its in-memory database, in one table
    ttl_s: float = 6.0  # 3.1: Time to live; no value in the paper
    # Epochs of a new table must not repeat those of the one before: its owner passes a number
    # that only grows, such as milliseconds since 1970.
    next_epoch: int = 1
    leases: dict[str, SharedTeacher] = field(default_factory=dict)  # by teacher
    demands: dict[str, Demand] = field(default_factory=dict)  # by student
    version: int = 0  # of the newest change of any student's teachers
    # (version, teacher, change) by student
    changes: dict[str, deque[tuple[int, str, Fate]]] = field(default_factory=dict)
    touched: set[str] = field(default_factory=set)  # changed rows; a store empties it

    # Teachers

    def on_registered(self, teacher: str, time: float) -> None:
        # 3.1: "first registered in the Coordinator module"; its model is deployed afterward
        if teacher in self.leases:  # it loads another model: no student's until it is ready
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
        """Admit a teacher whose model is loaded; with long batches, its TTL may be longer."""
        if teacher not in self.leases:
            self.on_registered(teacher, time)
        row = self.leases[teacher]
        row.renewed_at, row.ttl_s = time, ttl_s or self.ttl_s
        row.info = info
        self._move(row, "ready")
        self._set_rate(row, t_t)
        self._match(time)  # 3.4: a new one goes to a student that is searching

    def on_renewed(self, teacher: str, time: float) -> bool:
        """Renew a lease; False where the teacher is unknown by now and must register again."""
        row = self.leases.get(teacher)
        if row is None:
            return False
        row.renewed_at = time  # 3.1: a heartbeat prolongs the TTL
        return True

    def on_info(self, teacher: str, info: TeacherInfo) -> None:
        """Update what a teacher states of itself; its students learn of a new engine at once."""
        row = self.leases[teacher]
        before, row.info = row.info, info
        if before is not None and before.engine != info.engine:
            self._notify_students(row)

    def on_rate(self, teacher: str, t_t: float, time: float) -> None:
        """Update the rate that a teacher measures (t_t, section 3.2); match students again."""
        if teacher in self.leases:
            self._set_rate(self.leases[teacher], t_t)
            self._match(time)

    def on_leaving(self, teacher: str, time: float) -> bool:
        """Drain a teacher that says goodbye: it answers what it owes and gets nothing new."""
        # Beyond the paper, where a teacher only becomes unavailable (3.4).
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
        """Remove a teacher whose connection broke or whose TTL passed; True if it was there."""
        row = self.leases.pop(teacher, None)
        if row is None:
            return False
        self._detach(row)
        how: Fate = "left" if row.state == "draining" else "lost"
        for student in row.shares:  # none in case 1 of 3.4: its loss is ignored
            self._note(student, teacher, "expired" if expired else how)
        # 3.4, cases 2 and 3: a replacement no other student has, if it is free
        self._match(time)
        return True

    def expired(self, time: float) -> list[str]:
        """List teachers silent for longer than their TTL (3.1); pass each to `on_lost`.

        A teacher that still loads its model is silent and no student's: its connection shows
        whether it lives (3.4, case 1: its loss before it is scheduled is ignored).
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
        """Cover the rate t_s (samples/s) of a student with teachers (Algorithm 1, line 1)."""
        # Line 1 counts n teachers of one type. A rate fits teachers of several types as well.
        demand = self.demands.get(student)
        if demand is None:
            # 3.2: "when a Student resource searches for Teacher resources"
            demand = self.demands[student] = Demand(student, t_s, since=time)
            self.changes.setdefault(student, deque(maxlen=_KEPT))
        demand.t_s = demand.need = t_s
        demand.at_most = at_most
        demand.priority, demand.floor = priority, floor
        self._match(time)

    def on_extra(self, student: str, time: float, need: float = 0.0) -> bool:
        """Schedule one additional teacher as soon as one is free (Algorithm 1, line 8).

        With `need` in samples/s, as many as cover it; it replaces the need reported before.
        Return whether a teacher came now; if not, the student is searching.
        """
        demand = self.demands.get(student)
        if demand is None:  # not announced yet, or given up for silence
            return False
        before = len(demand.held)
        demand.need, demand.asked_at = need or demand.need, time
        # Line 8's "additional": a rate just above what it has is covered by one more teacher.
        demand.t_s = max(demand.need, demand.rate * (1 + 1e-6) + 1e-6)
        self._match(time)
        # It starved: teachers that no other student misses help to rebuild its buffer.
        while (missing := _REBUILDS * demand.need - demand.rate) > 0:
            grant = grant_free([*self._ready()], demand, missing)
            if grant is None:
                break
            self._give(grant.row, demand, grant.part)
        return len(demand.held) > before

    def on_need(self, student: str, need: float, time: float) -> None:
        """Lower the need of a student; teachers beyond it are for students that fall short."""
        # Beyond the paper: Algorithm 1 never lowers the number of a student's teachers.
        if (demand := self.demands.get(student)) is not None:
            demand.t_s = demand.need = need
            self._match(time)

    def on_release(
        self, student: str, teacher: str, epoch: int, need: float | None, time: float
    ) -> None:
        """Release a lease that its student can do without; `need` samples/s stay covered.

        Without `need`, the demand stays: a request failed, and the same teacher may come again.
        """
        row = self._held(student, teacher, epoch)
        if row is None or row.state != "assigned":
            return
        demand = self.demands.get(student)
        if demand is not None and need is not None:
            # The remaining teachers cover the need that the student sees now.
            rest = max(0.0, demand.rate - row.rate_of(student))
            demand.t_s = demand.need = min(rest, need)
        self._take(row, student, 1.0, "released")
        self._match(time)

    def on_complaint(self, student: str, teacher: str, epoch: int, time: float) -> bool:
        """Remove a teacher with unusable answers; True if this student has that lease."""
        # A late complaint, when another student has the teacher, changes nothing.
        held = self._held(student, teacher, epoch) is not None
        return held and self.on_lost(teacher, time)

    def _held(self, student: str, teacher: str, epoch: int) -> SharedTeacher | None:
        row = self.leases.get(teacher)
        share = None if row is None else row.shares.get(student)
        return row if share is not None and share.epoch == epoch else None

    def on_student_gone(self, student: str, time: float) -> None:
        self.demands.pop(student, None)  # 3.4: its teachers wait for another student
        for row in self.leases.values():
            if row.shares.pop(student, None) is not None:  # draining ones too
                self._move(row, "assign" if row.shares else "release")
        self.changes.pop(student, None)
        self._match(time)

    def on_restored(
        self, rows: list[SharedTeacher], demands: list[Demand], next_epoch: int, time: float
    ) -> None:
        """Continue with the rows of a store after the coordinator was restarted.

        Leases keep owner and epoch, so answers under way stay valid. Teachers that no student of
        the store holds are free. 3.4 assumes that the coordinator is always available.
        """
        self.next_epoch = max(self.next_epoch, next_epoch)
        for d in demands:
            self.on_demand(d.student, d.t_s, d.since, d.at_most, d.priority, d.floor)
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

    # State

    @property
    def free(self) -> dict[str, float]:
        """Samples/s that no student has, by teacher: of all of it or of the share left."""
        return {row.teacher: rest * row.t_t for row in self._ready() if (rest := row.rest)}

    def _ready(self) -> Iterator[SharedTeacher]:
        """Teachers that may be assigned, in whole or in part."""
        return (r for r in self.leases.values() if r.state in ("free", "assigned"))

    def held_by(self, student: str) -> list[Lease]:
        demand = self.demands.get(student)
        return [row.lease(student) for row in demand.held.values()] if demand else []

    def delta(self, student: str, version: int) -> Delta:
        """Changes since `version`, for a student's reader; -1 gives the whole list."""
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
        """Assign free teachers to the students that search (3.4); then, fair shares."""
        all_rate = sum(row.t_t for row in self._ready())
        for demand in self.demands.values():
            demand.all_rate = all_rate
            if time - demand.asked_at > _EXTRA_S:
                demand.t_s = demand.need
        # Each turn grants something to one student. After this many turns little is uneven, and
        # the next event continues with it.
        for _ in range(len(self.leases) + _STEPS * len(self.demands)):
            grant = next_grant([*self._ready()], self.demands.values())
            if grant is None:
                return  # 3.4: "If there is no such Student resource", the teacher waits
            if grant.by is not None:
                self._take(grant.row, grant.by.student, grant.part, "moved")
            self._give(grant.row, grant.to, grant.part)

    def _give(self, row: SharedTeacher, demand: Demand, part: float) -> None:
        """Add a part of a teacher to a student's share, under a new lease if it had none."""
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
        """Take a part of a teacher from a student; all where less than CRUMB would be left."""
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
        """Remove a teacher from its students' demands; the row and its shares stay."""
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
        self._notify_students(row)

    def _notify_students(self, row: SharedTeacher) -> None:
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
