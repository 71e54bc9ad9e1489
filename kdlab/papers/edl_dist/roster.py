"""The teachers of a student: who joined, left or was lost, and how fast each is.

Section 3.1: the reader gets its teachers and their availability from the coordinator. Section 3.4:
the loss of a teacher is one of three cases (in_flight.py).

Beyond the paper: a teacher that failed is avoided for a while (patience.py), and a student that
has no teacher for longer than `wait_s` fails; the paper sets no limit. Teachers that come and go
without a single answer do not count, and a student that still has labels, or needs no more, does
not wait for teachers.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from kdlab.events.teachers import AllTeachersLost, EngineChanged, TeacherLeft, TeacherLost
from kdlab.papers.edl_dist.beyond.patience import Patience
from kdlab.papers.edl_dist.beyond.trust import Trust, Witness
from kdlab.papers.edl_dist.in_flight import InFlight, Part, PendingRequest, Speed
from kdlab.papers.edl_dist.leases import Fate
from kdlab.papers.edl_dist.reader_instructions import (
    EmitEvent,
    Instructions,
    ReportBadTeacher,
    ReturnTeacher,
)
from kdlab.papers.edl_dist.reader_rules import Teacher

# Not in the paper, whose teachers only become unavailable (3.4): their answers still come.
_GRACEFUL: tuple[Fate, ...] = ("left", "released", "moved")


@dataclass(slots=True)
class Roster:
    ledger: InFlight
    patience: Patience
    trust: Trust
    teachers: dict[str, Teacher]  # by address
    most: int  # samples of a part, at most
    wait_s: float  # seconds without any teacher, before the run fails
    # Seconds: when the last teacher went; None while there are some
    without_since: float | None
    dry_since: float  # seconds: the first moment without a teacher since the last answer
    is_dry: bool = True  # no answer came since then
    # Leases that were given up, by teacher, until the coordinator reports them gone
    unusable: dict[str, int] = field(default_factory=dict)
    releasing: set[str] = field(default_factory=set)  # asked to be released, still listed
    last_trouble: str = ""  # for the error of a run that fails

    def on_teachers(
        self, reported: Collection[Teacher], gone: Mapping[str, Fate], *, full: bool
    ) -> tuple[Instructions, bool]:
        """Update the list from the coordinator's report; with `full`, replace it.

        Returns:
            The instructions that follow, and whether a teacher joined.
        """
        gone, instructions, joined = dict(gone), Instructions(), False
        self.patience.prune(self.teachers)
        self.trust.prune()
        new = {t.address: t for t in reported}
        if full:  # it was too far behind for changes alone (leases.py)
            gone |= {address: "lost" for address in self.teachers if address not in new}
        for address, how in gone.items():
            instructions += self._on_gone(address, how, new)
        for teacher in reported:
            before = self.teachers.get(teacher.address)
            if self.unusable.get(teacher.address) == teacher.lease:
                continue
            self.unusable.pop(teacher.address, None)
            self.teachers[teacher.address] = teacher
            self.learn(teacher)
            if before is None or before.lease != teacher.lease:
                # Lost and assigned again between two reports: a new lease, as in case 3 of 3.4
                if before is not None:
                    self.ledger.on_teacher_lost(before.address, before.lease)
                joined = True
                instructions.append(EmitEvent(teacher.joined()))
            elif teacher.draining and not before.draining:
                instructions.append(EmitEvent(TeacherLeft(teacher=teacher.name, resent=0)))
            elif teacher.engine != before.engine:
                instructions.append(
                    EmitEvent(EngineChanged(teacher=teacher.name, engine=teacher.engine))
                )
        return instructions, joined

    def _on_gone(self, address: str, how: Fate, new: Mapping[str, Teacher]) -> Instructions:
        before, after = self.teachers.get(address), new.get(address)
        if before is None:  # 3.4, case 1: nothing was scheduled to it
            if after is None:
                self.unusable.pop(address, None)
            return []
        if after is not None and after.lease == before.lease:
            return []
        del self.teachers[address]
        self.ledger.on_unusable(address)
        if how in _GRACEFUL or address in self.releasing:  # nothing is re-sent
            self.releasing.discard(address)
            left = TeacherLeft(teacher=before.name, resent=0, how=how)
            return [] if before.draining else [EmitEvent(left)]
        again = self.ledger.on_teacher_lost(address, before.lease)  # 3.4, cases 2 and 3
        self.patience.forget(address)
        # 3.1: silent for longer than its TTL; 3.4: "its status will become unavailable"
        why = "silent beyond its lease" if how == "expired" else "its connection broke"
        lost = TeacherLost(teacher=before.name, why=why, resent=again)
        return [*self.trust.on_gone(Witness(address, before.lease)), EmitEvent(lost)]

    def on_changed(self, time: float) -> Instructions:
        """Note that teachers came or went; report when the last one is gone."""
        if self.teachers:
            self.without_since = None
        elif self.without_since is None:
            self.dry_since = self.dry_since if self.is_dry else time
            self.without_since, self.is_dry = self.dry_since, True
            return [
                EmitEvent(AllTeachersLost(unplaced=self.ledger.samples, wait_s=self.wait_s))
            ]
        return []

    def on_answer(
        self,
        part: Part,
        teacher: str,
        sent: PendingRequest | None,
        time: float,
        *,
        counts: bool,
    ) -> None:
        """Learn from an answer how fast its teacher is, also from one that does not count."""
        self.is_dry = self.is_dry and not counts
        facts = self.teachers.get(teacher)
        if sent is not None and facts is not None:
            self.patience.on_answer(teacher, part.size, sent, facts.whole_t_t, time)
            self.learn(facts)

    def on_trouble(
        self, teacher: str, lease: int, why: str, *, unusable: bool, time: float
    ) -> Instructions:
        """End the lease of a teacher after a failed request; its parts wait again."""
        again = self.ledger.on_teacher_lost(teacher, lease)
        facts = self.teachers.get(teacher)
        known = facts is not None and facts.lease == lease  # it may be back under a new one
        if known:
            del self.teachers[teacher]
            self.unusable[teacher] = lease
            self.ledger.on_unusable(teacher)
        instructions = self.trust.on_gone(Witness(teacher, lease))
        if known or again:
            self.last_trouble = why
            name = facts.name if facts else teacher
            instructions.append(EmitEvent(TeacherLost(teacher=name, why=why, resent=again)))
            if unusable:
                # Beyond the paper
                instructions.append(ReportBadTeacher(teacher, lease, why))
            else:
                instructions.append(
                    ReturnTeacher(teacher, lease, self.patience.on_failure(teacher))
                )
            instructions += self.on_changed(time)
        return instructions

    def is_missed(self, fed: bool, time: float) -> bool:
        """Return whether the student lacks teachers for too long; never where it is `fed`."""
        if fed:
            self.dry_since = time
        if self.without_since is None:
            return False
        if fed:
            self.without_since = time
        return not fed and time - self.without_since > self.wait_s

    def stated_rate(self, teacher: str) -> float | None:
        """Samples/s that a teacher states for itself; None if it is not in the list."""
        # 3.2 takes t_t from "historical information"; here each teacher measures its own.
        facts = self.teachers.get(teacher)
        return None if facts is None else facts.whole_t_t

    def learn(self, teacher: Teacher) -> None:
        """Update the ledger's speed of a teacher from what is observed of it."""
        address, known = teacher.address, self.patience
        if teacher.draining:
            self.ledger.on_unusable(address)
            return
        speed = Speed(
            rate=min(known.rate(address, teacher.whole_t_t), teacher.pace),
            least=teacher.min_batch,
            most=min(teacher.best_batch, self.most),
            way_s=known.way_s(address),
            ahead_s=known.ahead_s(address),
            pace=teacher.pace,
        )
        self.ledger.on_speed(address, speed)
