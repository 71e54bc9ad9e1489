"""Who is a teacher and whose: the coordinator's table (EDL-Dist, sections 3.1, 3.4).

    REGISTERED --ready--> FREE --assign--> ASSIGNED --release--> FREE
         FREE or ASSIGNED --leaving--> DRAINING
         any state --connection lost or TTL passed--> gone (its row is removed)

A teacher is registered before its model is loaded (3.1), so a registered one counts as
alive and is never handed out. A draining one answers what it was asked and gets no more.
A row carries a lease epoch that grows with every change of owner: an answer from an
earlier epoch is not accepted. Time is a field of every event.

Every change of a student's teachers is kept under a version, so that a reader is told
what is new and not the whole list (`delta`).

Several students (the paper has them, and no word on who comes first): a free teacher
goes to the one whose need is covered least, the longest searching among equals (3.4,
last paragraph). Without a free one, those that are held are shared (fair_shares.py). A
student of priority 2 counts as covered half as much as one of priority 1 with the same
share; nobody is brought below its `floor` of teachers for somebody else who has one.

A complaint names the lease it is about: one that comes late, when the teacher is another
student's, changes nothing.
"""

from collections import deque
from dataclasses import dataclass, field
from math import inf
from typing import Literal

from kdlab.papers.edl_dist.assignment import nearest, next_teacher
from kdlab.papers.edl_dist.fair_shares import (
    Demand,
    Exchange,
    Lease,
    lift,
    pass_time,
    poorest,
    rest,
    turn,
)
from kdlab.papers.edl_dist.teacher_info import TeacherInfo

Change = Literal["given", "draining", "left", "lost", "expired", "released", "moved"]

_KEPT = 4096  # changes remembered per student; a reader further behind gets the whole list
_EXTRA_S = 30.0  # one teacher more than its need is a student's so long, while it asks
_REBUILDS = 1.1  # times its need, while there are free ones


@dataclass(frozen=True, slots=True)
class Delta:
    """What changed for one student after a version."""

    version: int
    full: bool  # `held` is the whole list; otherwise only what is new or draining
    held: tuple[Lease, ...]
    gone: dict[str, Change]  # teacher -> how it went; the last way, if it came and went


@dataclass(slots=True)
class LeaseTable:
    ttl_s: float = 6.0
    turn_s: float = 2.0  # with fewer teachers than students: how long one keeps its teacher
    # Epochs of a table that starts afresh must not repeat those of the one before: its
    # owner passes a number that only grows, such as milliseconds since 1970.
    next_epoch: int = 1
    leases: dict[str, Lease] = field(default_factory=dict)
    demands: dict[str, Demand] = field(default_factory=dict)
    turned_at: float = -inf  # when turns were looked at last
    version: int = 0  # grows with every change a student could care about
    changes: dict[str, deque[tuple[int, str, Change]]] = field(default_factory=dict)
    touched: set[str] = field(default_factory=set)  # rows changed; a store empties it

    # Teachers

    def on_registered(self, teacher: str, time: float) -> None:
        if teacher in self.leases:  # it loads another model: nobody's until it is ready
            self.on_lost(teacher, time)
        self.leases[teacher] = Lease(teacher, "registered", time, self.ttl_s)
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
        lease = self.leases[teacher]
        lease.renewed_at, lease.ttl_s = time, ttl_s or self.ttl_s
        lease.info = info
        self._set_rate(lease, t_t)
        if lease.state == "registered":
            self._free(lease)
        self._match(time)  # also when one that is held reports another rate

    def on_renewed(self, teacher: str, time: float) -> bool:
        """False tells the teacher that it is not known (any more): register again."""
        lease = self.leases.get(teacher)
        if lease is None:
            return False
        lease.renewed_at = time
        return True

    def on_info(self, teacher: str, info: TeacherInfo) -> None:
        """It says something else of itself: its student hears of another engine at once."""
        lease = self.leases[teacher]
        before, lease.info = lease.info, info
        if before is not None and before.engine != info.engine:
            self._tell_anew(lease)

    def on_rate(self, teacher: str, t_t: float, time: float) -> None:
        """A teacher measures another t_t than before; its student may need one more."""
        if teacher in self.leases:
            self._set_rate(self.leases[teacher], t_t)
            self._tell_anew(self.leases[teacher])
            self._match(time)

    def _tell_anew(self, lease: Lease) -> None:
        if lease.student is not None and lease.state == "assigned":
            self._note(lease.student, lease.teacher, "given")

    def on_leaving(self, teacher: str, time: float) -> bool:
        """It said goodbye: it answers what it was asked, and gets nothing new."""
        lease = self.leases.get(teacher)
        if lease is None or lease.state == "draining":
            return False
        student = lease.student
        self._detach(lease)
        lease.state, lease.student = "draining", student
        if student is not None:
            self._note(student, teacher, "draining")
        self._match(time)
        return True

    def on_lost(self, teacher: str, time: float, *, expired: bool = False) -> bool:
        """The connection broke, or the TTL passed. True if it was known."""
        lease = self.leases.pop(teacher, None)
        if lease is None:
            return False
        student, draining = lease.student, lease.state == "draining"
        self._detach(lease)
        if student is not None:
            silent: Change = "expired" if expired else "lost"
            self._note(student, teacher, "left" if draining and not expired else silent)
        self._match(time)
        return True

    def expired(self, time: float) -> list[str]:
        """Teachers silent for longer than their TTL; pass each to `on_lost`.

        One that still loads its model is silent and nobody's: its connection says whether
        it lives (case 1 of 3.4: before it is scheduled, its loss is ignored).
        """
        return [
            lease.teacher
            for lease in self.leases.values()
            if lease.state != "registered" and time - lease.renewed_at > lease.ttl_s
        ]

    # Students

    def on_demand(
        self,
        student: str,
        t_s: float,
        time: float,
        at_most: int | None = None,
        priority: float = 1.0,
        floor: int = 1,
    ) -> None:
        """Algorithm 1, line 1: cover the rate t_s with teachers."""
        demand = self.demands.get(student)
        if demand is None:
            least = min((d.given for d in self.demands.values()), default=0.0)
            demand = Demand(student, t_s, since=time, given=least)
            self.demands[student] = demand
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
        while (missing := _REBUILDS * demand.need - demand.rate) > 0 and not demand.is_full:
            teacher = next_teacher(self.free, missing)
            if teacher is None:
                break
            self._assign(self.leases[teacher], demand, time)
        return len(demand.held) > before

    def on_release(
        self, student: str, teacher: str, epoch: int, need: float | None, time: float
    ) -> None:
        """A student can do without this lease; `need` samples/s must stay covered.

        None is as many as before: a request failed, and the same teacher may come again.
        """
        lease = self._held(student, teacher, epoch)
        if lease is None or lease.state != "assigned":
            return
        demand = self.demands.get(student)
        if demand is not None and need is not None:
            # What is left covers the student's needs as it sees them now.
            demand.t_s = demand.need = min(max(0.0, demand.rate - lease.t_t), need)
        self._take(lease, "released")
        self._match(time)

    def on_complaint(self, student: str, teacher: str, epoch: int, time: float) -> bool:
        """Its answers cannot be used. True if it is this student's, under this lease."""
        held = self._held(student, teacher, epoch) is not None
        return held and self.on_lost(teacher, time)

    def _held(self, student: str, teacher: str, epoch: int) -> Lease | None:
        lease = self.leases.get(teacher)
        if lease is None or (lease.student, lease.epoch) != (student, epoch):
            return None
        return lease

    def on_student_gone(self, student: str, time: float) -> None:
        demand = self.demands.pop(student, None)
        if demand is not None:
            for lease in list(demand.held.values()):
                lease.student = None
                self._free(lease)
        for lease in self.leases.values():
            if lease.student == student:  # draining for it
                lease.student = None
        self.changes.pop(student, None)
        self._match(time)

    def on_restored(
        self, leases: list[Lease], demands: list[Demand], next_epoch: int, time: float
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
        for lease in leases:
            lease.renewed_at = time
            self.leases[lease.teacher] = lease
            demand = self.demands.get(lease.student or "")
            if lease.state == "assigned" and demand is not None:
                demand.held[lease.teacher] = lease
                demand.rate += lease.t_t
                self._note(demand.student, lease.teacher, "given")
            elif lease.state in ("assigned", "free"):
                lease.student = None
                self._free(lease)
        self._match(time)

    def someone_starves(self) -> bool:
        """Whether a student falls short while another one has more, or has any at all."""
        demands = self.demands.values()
        return any(d.searching and d.cover < 1.0 for d in demands) and any(
            d.held for d in demands
        )

    def on_turn(self, time: float) -> None:
        """Where teachers do not divide evenly, students are given more and less in turn.

        Ranks of a group train in step: one without soft labels stops them all.
        """
        passed, self.turned_at = min(1.0, time - self.turned_at), time
        pass_time(self.demands.values(), passed)
        if (found := turn(self.demands.values(), self.turn_s, time)) is not None:
            poor, exchange = found
            self._exchange(exchange, poor, time)
            rest(exchange.rich, time)

    # Looks

    @property
    def free(self) -> dict[str, float]:
        """t_t of the free teachers."""
        return {le.teacher: le.t_t for le in self.leases.values() if le.state == "free"}

    def held_by(self, student: str) -> list[Lease]:
        demand = self.demands.get(student)
        return list(demand.held.values()) if demand is not None else []

    def delta(self, student: str, version: int) -> Delta:
        """What a reader that knows `version` has to be told; -1 knows nothing."""
        noted = self.changes.get(student, deque())
        if version < 0 or (len(noted) == noted.maxlen and version < noted[0][0]):
            return Delta(self.version, True, tuple(self.held_by(student)), {})
        held, gone = dict[str, Lease](), dict[str, Change]()
        for at, teacher, change in noted:
            if at <= version:
                continue
            lease = self.leases.get(teacher)
            if change in ("given", "draining"):
                if lease is not None and lease.student == student:
                    held[teacher] = lease
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
        for demand in self.demands.values():
            if time - demand.asked_at > _EXTRA_S:
                demand.t_s = demand.need
        while any(self._help(poor, time) for poor in poorest(self.demands.values(), time)):
            pass  # each turn gives one teacher to one student

    def _help(self, poor: Demand, time: float) -> bool:
        free = self.free
        here = {t: le.info.here if (le := self.leases[t]).info else 1.0 for t in free}
        teacher = next_teacher(nearest(free, here), poor.t_s - poor.rate)
        if teacher is None:
            exchange = lift(self.demands.values(), poor, time)
            if exchange is not None:
                self._exchange(exchange, poor, time)
            return exchange is not None
        self._assign(self.leases[teacher], poor, time)
        return True

    def _exchange(self, exchange: Exchange, poor: Demand, time: float) -> None:
        self._move(exchange.theirs, poor, time)
        if exchange.own is not None:
            self._move(exchange.own, exchange.rich, time)
            exchange.rich.swapped_at = poor.swapped_at = time

    def _move(self, lease: Lease, after: Demand, time: float) -> None:
        self._take(lease, "moved")
        self._assign(lease, after, time)

    def _assign(self, lease: Lease, demand: Demand, time: float) -> None:
        self.touched.add(lease.teacher)
        lease.state, lease.student = "assigned", demand.student
        lease.epoch, lease.assigned_at = self.next_epoch, time
        self.next_epoch += 1
        demand.held[lease.teacher] = lease
        demand.rate += lease.t_t
        self._note(demand.student, lease.teacher, "given")

    def _take(self, lease: Lease, how: Change) -> None:
        student = lease.student
        self._detach(lease)
        self._free(lease)
        if student is not None:
            self._note(student, lease.teacher, how)

    def _detach(self, lease: Lease) -> None:
        """Out of its student's account; the row stays."""
        self.touched.add(lease.teacher)
        demand = self.demands.get(lease.student or "")
        if demand is not None and demand.held.pop(lease.teacher, None) is not None:
            demand.rate = sum(le.t_t for le in demand.held.values())
        lease.student = None

    def _free(self, lease: Lease) -> None:
        lease.state = "free"
        self.touched.add(lease.teacher)

    def _set_rate(self, lease: Lease, t_t: float) -> None:
        lease.t_t = t_t
        demand = self.demands.get(lease.student or "")
        if demand is not None:
            demand.rate = sum(le.t_t for le in demand.held.values())

    def _note(self, student: str, teacher: str, change: Change) -> None:
        self.version += 1
        noted = self.changes.get(student)
        if noted is not None:
            noted.append((self.version, teacher, change))
