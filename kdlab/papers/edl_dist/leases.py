"""Who is a teacher and whose: the coordinator's table (EDL-Dist, sections 3.1, 3.4).

    REGISTERED --ready--> FREE --assign--> ASSIGNED --release--> FREE
         any state --lost or TTL passed--> gone (its row is removed)

A teacher is registered before its model is loaded (3.1), so a registered one counts as
alive and is never handed out. A row carries a lease epoch that grows with every change
of owner: an answer from an earlier epoch is not accepted. A student that found too few
teachers is searching; a teacher that becomes free goes to the student that searches
longest (3.4, last paragraph). Time is a field of every event.
"""

from dataclasses import dataclass, field
from typing import Literal

from kdlab.papers.edl_dist.assignment import choose

State = Literal["registered", "free", "assigned"]


@dataclass(slots=True)
class Lease:
    teacher: str  # address
    state: State
    renewed_at: float
    ttl_s: float
    t_t: float = 0.0  # samples/s, measured by the teacher itself
    epoch: int = 0
    student: str | None = None


@dataclass(slots=True)
class Demand:
    """What one student asked for; it is searching while its teachers fall short."""

    student: str
    t_s: float  # samples/s to be covered by teachers
    at_most: int | None = None
    since: float = 0.0  # searching since


@dataclass(slots=True)
class LeaseTable:
    ttl_s: float = 6.0
    leases: dict[str, Lease] = field(default_factory=dict)
    demands: dict[str, Demand] = field(default_factory=dict)
    next_epoch: int = 1
    version: int = 0  # grows with every change a student could care about

    # Teachers

    def on_registered(self, teacher: str, time: float) -> None:
        self.leases[teacher] = Lease(teacher, "registered", time, self.ttl_s)

    def on_ready(
        self, teacher: str, t_t: float, time: float, ttl_s: float | None = None
    ) -> None:
        """The model is loaded. A teacher with long batches may have a longer TTL."""
        if teacher not in self.leases:
            self.on_registered(teacher, time)
        lease = self.leases[teacher]
        lease.t_t, lease.renewed_at, lease.ttl_s = t_t, time, ttl_s or self.ttl_s
        if lease.state == "registered":
            lease.state = "free"
        self._match(time)  # also when one that is held reports another rate

    def on_renewed(self, teacher: str, time: float, t_t: float | None = None) -> bool:
        """False tells the teacher that it is not known (any more): register again."""
        lease = self.leases.get(teacher)
        if lease is None:
            return False
        lease.renewed_at = time
        if t_t:
            lease.t_t = t_t
        return True

    def on_lost(self, teacher: str, time: float) -> bool:
        """The connection broke or the teacher said goodbye. True if it was known."""
        if self.leases.pop(teacher, None) is None:
            return False
        self.version += 1
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
        self, student: str, t_s: float, time: float, at_most: int | None = None
    ) -> None:
        """Algorithm 1, line 1: cover the rate t_s with teachers."""
        self.demands[student] = Demand(student, t_s, at_most=at_most, since=time)
        self._match(time)

    def on_extra(self, student: str, time: float) -> bool:
        """Algorithm 1, line 8: one additional teacher, as soon as one is free.

        Returns whether one was free now; if not, the student is searching.
        """
        demand = self.demands.get(student)
        if demand is None:  # not announced yet, or given up for silence
            return False
        held = len(self.held_by(student))
        # A rate just above what it has is covered by one more teacher.
        demand.t_s = max(demand.t_s, self._rate(student) * (1 + 1e-6) + 1e-6)
        self._match(time)
        return len(self.held_by(student)) > held

    def on_release(self, student: str, teacher: str, time: float) -> None:
        lease = self.leases.get(teacher)
        if lease is None or lease.student != student:
            return
        demand = self.demands.get(student)
        if demand is not None:
            # What is left covers the student's needs as it sees them now.
            demand.t_s = max(0.0, self._rate(student) - lease.t_t)
        self._free_again(lease)
        self._match(time)

    def on_given_back(self, student: str, teacher: str, epoch: int, time: float) -> None:
        """A request failed; the need is as it was. The same teacher may come again."""
        lease = self.leases.get(teacher)
        if lease is not None and (lease.student, lease.epoch) == (student, epoch):
            self._free_again(lease)
            self._match(time)

    def on_student_gone(self, student: str, time: float) -> None:
        self.demands.pop(student, None)
        for lease in self.held_by(student):
            self._free_again(lease)
        self._match(time)

    def held_by(self, student: str) -> list[Lease]:
        return [lease for lease in self.leases.values() if lease.student == student]

    # Matching

    def _free(self) -> dict[str, float]:
        return {n: le.t_t for n, le in self.leases.items() if le.state == "free"}

    def _rate(self, student: str) -> float:
        return sum(lease.t_t for lease in self.held_by(student))

    def _match(self, time: float) -> None:
        """Give free teachers to the students that search, the longest first."""
        for demand in sorted(self.demands.values(), key=lambda d: (d.since, d.student)):
            held = self.held_by(demand.student)
            missing = demand.t_s - self._rate(demand.student)
            for teacher in choose(self._free(), missing):
                if demand.at_most is not None and len(held) >= demand.at_most:
                    break
                self._assign(teacher, demand.student)
                held = self.held_by(demand.student)

    def _assign(self, teacher: str, student: str) -> None:
        lease = self.leases[teacher]
        lease.state, lease.student = "assigned", student
        lease.epoch = self.next_epoch
        self.next_epoch += 1
        self.version += 1

    def _free_again(self, lease: Lease) -> None:
        lease.state, lease.student = "free", None
        self.version += 1
