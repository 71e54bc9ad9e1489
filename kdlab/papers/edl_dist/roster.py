"""The teachers of a student: who joined, left or was lost, and how fast each is.

Section 3.1: the reader asks which teachers to use and is told who is alive. Section 3.4: a
teacher that is lost leaves its student in one of three cases (in_flight.py).

Beyond the paper: one that failed is left alone for a while (patience.py), and a student that
has been without any teacher for too long fails, where the paper's students wait for ever.
Teachers that come and go without a single answer are no teachers. A student that still has
labels, or needs no more, misses nobody.
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

_GRACEFUL: tuple[Fate, ...] = ("left", "released", "moved")  # its answers still come


@dataclass(slots=True)
class Roster:
    ledger: InFlight
    patience: Patience
    trust: Trust
    teachers: dict[str, Teacher]  # by address
    most: int  # samples of a part
    wait_s: float  # without any teacher, before the run fails
    without_since: float | None  # any teacher; None: there are some
    dry_since: float  # the first moment without a teacher since the last answer
    is_dry: bool = True
    unusable: dict[str, int] = field(
        default_factory=dict
    )  # lease given up on, until it is gone
    releasing: set[str] = field(default_factory=set)
    last_trouble: str = ""

    def on_teachers(
        self, given: Collection[Teacher], gone: Mapping[str, Fate], *, full: bool
    ) -> tuple[Instructions, bool]:
        """What the coordinator says is new; with `full`, all there is.

        Returns:
            What is told of it, and whether a teacher came.
        """
        gone, told, joined = dict(gone), Instructions(), False
        self.patience.prune(self.teachers)
        self.trust.prune()
        new = {t.address: t for t in given}
        if full:
            gone |= {address: "lost" for address in self.teachers if address not in new}
        for address, how in gone.items():
            told += self._on_gone(address, how, new)
        for teacher in given:
            before = self.teachers.get(teacher.address)
            if self.unusable.get(teacher.address) == teacher.lease:
                continue
            self.unusable.pop(teacher.address, None)
            self.teachers[teacher.address] = teacher
            self.learn(teacher)
            if before is None or before.lease != teacher.lease:
                if before is not None:  # lost and assigned again between two looks
                    self.ledger.on_teacher_lost(before.address, before.lease)
                joined = True
                told.append(EmitEvent(teacher.joined()))
            elif teacher.draining and not before.draining:
                told.append(EmitEvent(TeacherLeft(teacher=teacher.name, resent=0)))
            elif teacher.engine != before.engine:
                told.append(
                    EmitEvent(EngineChanged(teacher=teacher.name, engine=teacher.engine))
                )
        return told, joined

    def _on_gone(
        self, address: str, how: Fate, given: Mapping[str, Teacher]
    ) -> Instructions:
        before, after = self.teachers.get(address), given.get(address)
        if before is None:  # 3.4, case 1: nothing was scheduled to it
            if after is None:
                self.unusable.pop(address, None)
            return []
        if after is not None and after.lease == before.lease:
            return []
        del self.teachers[address]
        self.ledger.on_unusable(address)
        if how in _GRACEFUL or address in self.releasing:
            self.releasing.discard(address)
            left = TeacherLeft(teacher=before.name, resent=0, how=how)
            return [] if before.draining else [EmitEvent(left)]
        again = self.ledger.on_teacher_lost(address, before.lease)  # 3.4, cases 2 and 3
        self.patience.forget(address)
        why = "silent beyond its lease" if how == "expired" else "its connection broke"
        lost = TeacherLost(teacher=before.name, why=why, resent=again)
        return [*self.trust.on_gone(Witness(address, before.lease)), EmitEvent(lost)]

    def on_changed(self, time: float) -> Instructions:
        """Teachers came or went; that the last one is gone is told."""
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
        """Also of one that does not count: it says how fast the teacher is."""
        self.is_dry = self.is_dry and not counts
        facts = self.teachers.get(teacher)
        if sent is not None and facts is not None:
            self.patience.on_answer(teacher, part.size, sent, facts.whole_t_t, time)
            self.learn(facts)

    def on_trouble(
        self, teacher: str, lease: int, why: str, *, unusable: bool, time: float
    ) -> Instructions:
        """A request came to nothing; the lease ends."""
        again = self.ledger.on_teacher_lost(teacher, lease)
        facts = self.teachers.get(teacher)
        known = facts is not None and facts.lease == lease  # it may be back under a new one
        if known:
            del self.teachers[teacher]
            self.unusable[teacher] = lease
            self.ledger.on_unusable(teacher)
        told = self.trust.on_gone(Witness(teacher, lease))
        if known or again:
            self.last_trouble = why
            name = facts.name if facts else teacher
            told.append(EmitEvent(TeacherLost(teacher=name, why=why, resent=again)))
            if unusable:
                told.append(ReportBadTeacher(teacher, lease, why))
            else:
                told.append(
                    ReturnTeacher(teacher, lease, self.patience.on_failure(teacher))
                )
            told += self.on_changed(time)
        return told

    def is_missed(self, fed: bool, time: float) -> bool:
        """Whether the student misses teachers for too long; `fed`: it misses nobody."""
        if fed:
            self.dry_since = time
        if self.without_since is None:
            return False
        if fed:
            self.without_since = time
        return not fed and time - self.without_since > self.wait_s

    def said(self, teacher: str) -> float | None:
        """Samples/s of a teacher by its own word; None: it is none."""
        facts = self.teachers.get(teacher)
        return None if facts is None else facts.whole_t_t

    def learn(self, teacher: Teacher) -> None:
        """What the ledger has to know of a teacher."""
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
