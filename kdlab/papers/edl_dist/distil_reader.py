"""The DistilReader of EDL-Dist (section 3.1): what it decides, without any wire.

Facts come in with their time (a teacher answered, a slot is free, the list of teachers
changed, time passed) and instructions come out (send this part to that teacher, hand
over that batch, ask for a teacher). `kdlab/cluster/student_reader.py` carries them out
over real wires, `kdlab/simulate` on a simulated clock, `kdlab.testing.replay` from a log.

It puts together
    hybrid_schedule   Algorithm 1: send, hold, one teacher more or less
    in_flight         section 3.4: every sample exactly once
    patience          deadlines, hedges, quarantine
    stability         Formula 2
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from typing import Any, Literal

from kdlab.papers.edl_dist.assignment import static_share
from kdlab.papers.edl_dist.hybrid_schedule import (
    Level,
    Policy,
    Schedule,
    on_request_failed,
    on_teachers_changed,
    on_volume,
)
from kdlab.papers.edl_dist.in_flight import InFlight, Part, Sent
from kdlab.papers.edl_dist.leases import Change
from kdlab.papers.edl_dist.patience import Patience
from kdlab.papers.edl_dist.reader_instructions import (
    AskTeacher,
    Complain,
    Deliver,
    Fail,
    GiveBack,
    Instructions,
    Keep,
    Release,
    Say,
    Send,
    TakeCached,
)
from kdlab.papers.edl_dist.stability import Stability

_POLITE: tuple[Change, ...] = ("left", "released", "moved")  # its answers still come


@dataclass(frozen=True, slots=True)
class Teacher:
    """A teacher as its student sees it."""

    address: str
    lease: int
    t_t: float  # samples/s
    best_batch: int  # samples it computes best at once
    draining: bool = False
    facts: Mapping[str, Any] = field(default_factory=dict)  # name, device: for people

    @property
    def name(self) -> str:
        return str(self.facts.get("name", self.address))


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """Thresholds in samples, times in seconds."""

    t_s: float  # samples/s of the student that never waits
    lt: int
    ut: int
    policy: Policy = "guarded"
    settle_s: float = 3.0
    window_s: float = 10.0
    order: Literal["any", "strict"] = "any"
    per_teacher: int = 2
    slots: int = 4  # batches that lie ready for the trainer
    hedge: bool = True
    give_up_s: float = 30.0  # for one request
    wait_s: float = 120.0  # without any teacher, before the run fails
    sample_mb: float = 0.0  # of one stored input with its soft label, for Formula 2


class DistilReader:
    def __init__(
        self,
        rules: Rules,
        sizes: Callable[[int], Sequence[int]],
        *,
        epochs: int,
        epoch: int = 0,
        done: Collection[int] = (),
        cached: Callable[[int, int], bool] = lambda epoch, batch: False,
        time: float = 0.0,
    ) -> None:
        """A reader for the batches of `epoch` that are not `done`, and all later ones.

        Args:
            rules: thresholds and times.
            sizes: samples in each batch of an epoch.
            epochs: the training ends before this one.
            epoch: the first.
            done: batches of it that were trained on before.
            cached: whether the soft labels of (epoch, batch) are known already.
            time: now.
        """
        self.rules, self.sizes, self.epochs, self.cached = rules, sizes, epochs, cached
        if epoch < epochs and len(done) == len(sizes(epoch)):  # saved after its last batch
            epoch, done = epoch + 1, ()
        self.epoch, self.delivered = epoch, set(done)
        # Of a whole epoch: the first may be a rest. All after it are alike.
        largest = max(sizes(epoch + 1), default=1)
        self.schedule = Schedule(
            lt=rules.lt,
            ut=rules.ut,
            batch=largest,
            policy=rules.policy,
            settle_s=rules.settle_s,
            window_s=rules.window_s,
        )
        self.ledger = InFlight(limit=rules.per_teacher)
        self.patience = Patience(give_up_s=rules.give_up_s)
        self.stability = Stability()
        self.teachers: dict[str, Teacher] = {}
        self.unusable: set[tuple[str, int]] = set()  # (address, lease) given up on
        self.releasing: set[str] = set()
        self._fresh = self._fresh_parts()
        self._next: Part | None = next(self._fresh, None)
        self._missing: dict[tuple[int, int], int] = {}  # samples still to arrive
        self._ready: dict[int, list[int]] = {}  # complete batches by epoch, heaps
        self._expected = 0  # strict: the next batch of `epoch`
        self._hedged: set[Part] = set()
        self._to_hedge: list[Part] = []
        self.unused = 0  # soft labels that arrived and were not trained on
        self.in_slots = 0  # of those, what lies in the trainer's slots
        self.slots_taken = 0
        self.batches_delivered = 0
        self.volume_max = 0
        self.announced = False  # the coordinator knows this student's demand
        self.without_teacher_since: float | None = time
        self._dry_since = time  # the first moment without a teacher since the last answer
        self._is_dry = True
        self.last_trouble = ""
        self._said_share = False
        self.paused = False  # the student stands still
        self._told: Instructions = []

    # Facts

    def on_announced(self) -> None:
        """The coordinator has the demand: line 1 of Algorithm 1 is under way."""
        self.announced = True

    def on_teachers(
        self,
        given: Collection[Teacher],
        gone: Mapping[str, Change],
        full: bool,
        time: float,
    ) -> Instructions:
        """What the coordinator says is new; with `full`, all there is."""
        changed = False
        gone = dict(gone)
        if full:
            listed = {t.address for t in given}
            gone |= {address: "lost" for address in self.teachers if address not in listed}
        for address, how in gone.items():
            changed |= self._on_gone(address, how, {t.address: t for t in given})
        for teacher in given:
            if (teacher.address, teacher.lease) in self.unusable:
                continue
            before = self.teachers.get(teacher.address)
            self.teachers[teacher.address] = teacher
            if before is None or before.lease != teacher.lease:
                if before is not None:  # lost and assigned again between two looks
                    self.ledger.on_teacher_lost(before.address, before.lease)
                changed = True
                self._say("teacher_joined", **teacher.facts, **_shown(teacher))
            elif teacher.draining and not before.draining:
                changed = True
                self._say("teacher_left", teacher=teacher.name, resent=0)
        if changed:
            self._teachers_changed(time)
        self._say_static_share()
        return self._pump(time)

    def _on_gone(self, address: str, how: Change, given: Mapping[str, Teacher]) -> bool:
        before = self.teachers.get(address)
        if before is None or (address in given and given[address].lease == before.lease):
            return False
        del self.teachers[address]
        if how in _POLITE or address in self.releasing:
            self.releasing.discard(address)
            if not before.draining:
                self._say("teacher_left", teacher=before.name, resent=0)
            return True
        again = self.ledger.on_teacher_lost(address, before.lease)
        self.unusable.add((address, before.lease))
        self.patience.forget(address)
        why = "silent beyond its lease" if how == "expired" else "its connection broke"
        self._say("teacher_lost", teacher=before.name, why=why, resent=again)
        return True

    def on_answer(self, part: Part, teacher: str, lease: int, time: float) -> Instructions:
        """Usable soft labels of a part have arrived."""
        sent = self.ledger.on_answer(part, teacher, lease)
        if sent is not None:
            self.patience.on_answer(teacher, time - sent.time)
            self._is_dry = False
            self._told.append(Keep(part))
            self._arrived(part)
        return self._pump(time)

    def on_trouble(
        self, teacher: str, lease: int, why: str, *, unusable: bool, time: float
    ) -> Instructions:
        """A request came to nothing: no connection, no answer in time, or a bad one.

        Args:
            teacher: address.
            lease: it was sent under.
            why: for people.
            unusable: it answered, and the answer cannot be used.
            time: now.
        """
        first = (teacher, lease) not in self.unusable
        self.unusable.add((teacher, lease))
        again = self.ledger.on_teacher_lost(teacher, lease)
        facts = self.teachers.get(teacher)
        if facts is not None and facts.lease == lease:  # it may be back under a new one
            del self.teachers[teacher]
        if first:
            self.last_trouble = why
            name = facts.name if facts else teacher
            self._say("teacher_lost", teacher=name, why=why, resent=again)
            if unusable:
                self._told.append(Complain(teacher, lease, why))
            else:
                back_off_s = self.patience.on_failure(teacher)
                self._told.append(GiveBack(teacher, lease, back_off_s))
            self._teachers_changed(time)
        return self._pump(time)

    def on_slot_free(self, samples: int, time: float) -> Instructions:
        """The trainer has used a batch of so many samples."""
        self.slots_taken -= 1
        self.in_slots -= samples
        self.unused -= samples
        return self._pump(time)

    def on_thresholds(self, lt: int, ut: int, time: float) -> Instructions:
        """Somebody set them, in samples; the policy goes on from where it is."""
        self.rules = replace(self.rules, lt=lt, ut=ut)
        self.schedule = replace(self.schedule, lt=lt, ut=ut)
        return self._pump(time)

    def on_paused(self, paused: bool, time: float) -> None:  # one fact, recorded as it is
        """A student that stands still neither needs more teachers nor fewer."""
        self.paused = paused
        self.schedule, _ = on_teachers_changed(self.schedule, time)  # looks begin anew

    def on_ask_failed(self) -> None:
        """The coordinator could not be asked; the next look may ask again."""
        self.schedule = on_request_failed(self.schedule)

    def on_release_failed(self, teacher: str) -> None:
        self.releasing.discard(teacher)

    def on_look(self, time: float) -> Instructions:
        """The monitoring task (Algorithm 1, line 3), every 50 ms or so."""
        level = self.level(time)
        self.stability.on_look(time, self.unused * self.rules.sample_mb, level.teachers)
        self._look_for_overdue(time)
        self._look_for_teachers(time)
        return self._pump(time)

    def level(self, time: float) -> Level:
        return Level(
            time=time,
            unused=self.unused,
            in_flight=self.ledger.samples,
            teachers=sum(not t.draining for t in self.teachers.values()),
            student_waits=self.slots_taken == 0,
        )

    def figures(self) -> dict[str, float]:
        """What people and MLflow see, in the units of `Rules`."""
        return {
            "volume": self.unused + self.ledger.samples,
            "in_flight": self.ledger.samples,
            "volume_max": self.volume_max,
            "teachers": len(self.teachers),
            "resends": self.ledger.resends,
            "hedges": self.ledger.hedges,
            "stored_mb": self.unused * self.rules.sample_mb,
            "stability_mean": self.stability.mean,
        }

    def work_is_open(self) -> bool:
        return self.ledger.samples > 0 or self._next is not None

    # What time brings

    def _look_for_overdue(self, time: float) -> None:
        late: dict[tuple[str, int], Sent] = {}
        overdue: list[Part] = []
        for part, out in self.ledger.outstanding():
            waited = time - out.time
            if waited > self.rules.give_up_s:
                late[out.teacher, out.lease] = out
            elif waited > self.patience.deadline_s(out.teacher):
                overdue.append(part)
        for part in overdue if self.rules.hedge else ():
            if part in self.ledger.sent and part not in self._hedged:  # once
                self._hedged.add(part)
                self._to_hedge.append(part)
        for teacher, lease in late:
            why = f"no answer within {self.rules.give_up_s:g} s"
            self._told += self.on_trouble(teacher, lease, why, unusable=False, time=time)

    def _look_for_teachers(self, time: float) -> None:
        # A student that still has labels, or needs no more, does not miss a teacher.
        fed = self.slots_taken or self.unused or not self.work_is_open()
        if fed:
            self._dry_since = time
        since = self.without_teacher_since
        if since is None:
            return
        if fed:
            self.without_teacher_since = time
        elif time - since > self.rules.wait_s:
            self._told.append(
                Fail(self.ledger.samples, self.batches_delivered, self.last_trouble)
            )

    def _teachers_changed(self, time: float) -> None:
        self.schedule, _ = on_teachers_changed(self.schedule, time)
        if self.teachers:
            self.without_teacher_since = None
        elif self.without_teacher_since is None:
            # Teachers that come and go without a single answer are no teachers.
            self._dry_since = self._dry_since if self._is_dry else time
            self._is_dry = True
            self.without_teacher_since = self._dry_since
            self._say("no_teacher", unplaced=self.ledger.samples, wait_s=self.rules.wait_s)

    def _say_static_share(self) -> None:
        """Line 1 of Algorithm 1, once, for the record."""
        if self.teachers and not self._said_share:
            self._said_share = True
            mean = sum(t.t_t for t in self.teachers.values()) / len(self.teachers)
            n = static_share(self.rules.t_s, mean)
            self._say(
                "scheduled", t_s=self.rules.t_s, t_t=mean, n=n, got=len(self.teachers)
            )

    # What has become possible

    def _pump(self, time: float) -> Instructions:
        self._deliver()
        self._schedule(time)
        self._send(time)
        self.volume_max = max(self.volume_max, self.unused + self.ledger.samples)
        told, self._told = self._told, []
        return told

    def _schedule(self, time: float) -> None:
        if self.paused:
            return
        self.schedule, told = on_volume(self.schedule, self.level(time))
        if "request_teacher" in told:
            if self.announced:
                self._told.append(AskTeacher())
            else:  # line 1 comes first
                self.schedule = on_request_failed(self.schedule)
        if "release_teacher" in told:
            spare = [t for t in self.teachers.values() if not t.draining]
            slowest = min(spare, key=lambda t: (t.t_t, t.address), default=None)
            if slowest is not None:
                self.releasing.add(slowest.address)
                self._told.append(Release(slowest.address))
        # send_inputs and hold_inputs are states of the schedule, read by _send

    def _deliver(self) -> None:
        while self.slots_taken < self.rules.slots and (batch := self._next_ready()) >= 0:
            size = self.sizes(self.epoch)[batch]
            self.slots_taken += 1
            self.in_slots += size
            self.batches_delivered += 1
            self._told.append(Deliver(self.epoch, batch))
            self.delivered.add(batch)
            if len(self.delivered) == len(self.sizes(self.epoch)):
                self.epoch, self.delivered, self._expected = self.epoch + 1, set(), 0

    def _next_ready(self) -> int:
        """The next batch to hand over, or -1; epochs one after the other."""
        complete = self._ready.get(self.epoch)
        if not complete:
            return -1
        if self.rules.order == "strict":
            while self._expected in self.delivered:
                self._expected += 1
            if complete[0] != self._expected:
                return -1
        batch = heappop(complete)
        if not complete:
            del self._ready[self.epoch]
        return batch

    def _send(self, time: float) -> None:
        usable = {a: t.t_t for a, t in self.teachers.items() if not t.draining}
        self._hedge(usable, time)
        while True:
            self._take_cached()
            address = self.ledger.pick(usable)
            if address is None:
                return
            teacher = self.teachers[address]
            part = self.ledger.next_waiting(teacher.best_batch)
            if part is None:
                part = self._next_fresh(teacher.best_batch, time)
            if part is None:
                return
            self.ledger.on_sent(part, address, teacher.lease, time)
            self._told.append(Send(part, address, teacher.lease))

    def _hedge(self, usable: Mapping[str, float], time: float) -> None:
        """Ask a second teacher for the parts that are overdue, as far as there is room."""
        waiting = []
        for part in self._to_hedge:
            if part not in self.ledger.sent:  # answered, or lost and sent again, meanwhile
                self._hedged.discard(part)
                continue
            address = self.ledger.pick(usable, but_not=part)
            if address is None:
                waiting.append(part)
                continue
            lease = self.teachers[address].lease
            self.ledger.on_hedged(part, address, lease, time)
            self._told.append(Send(part, address, lease))
        self._to_hedge = waiting

    def _next_fresh(self, largest: int, time: float) -> Part | None:
        whole = self._next
        if whole is None:
            return None
        # A batch that was begun is finished, whatever the volume: it is counted as a whole
        # from its first part on, and half a batch could never be trained on.
        if whole.start == 0:
            if not self.schedule.may_send(self.level(time), whole.size):
                return None
            self._begin(whole)
        part = whole._replace(stop=min(whole.stop, whole.start + largest))
        rest = whole._replace(start=part.stop)
        self._next = rest if rest.size else next(self._fresh, None)
        return part

    def _take_cached(self) -> None:
        """Batches whose soft labels are known need no teacher."""
        while (part := self._next) is not None and part.start == 0:
            room = self.unused + self.ledger.samples + part.size <= self.rules.ut
            if not room or not self.cached(part.epoch, part.batch):
                return
            self._begin(part)
            self.ledger.samples -= part.size
            self._told.append(TakeCached(part))
            self._arrived(part)
            self._next = next(self._fresh, None)
            self._deliver()

    def _begin(self, whole: Part) -> None:
        self.ledger.on_fresh(whole)
        self._missing[whole.epoch, whole.batch] = whole.size

    def _arrived(self, part: Part) -> None:
        key = (part.epoch, part.batch)
        self.unused += part.size
        self._missing[key] -= part.size
        self._hedged.discard(part)
        if not self._missing[key]:
            del self._missing[key]
            heappush(self._ready.setdefault(part.epoch, []), part.batch)

    def _fresh_parts(self) -> Iterator[Part]:
        """Every batch from the start position to the end of training, in order."""
        done = frozenset(self.delivered)
        for epoch in range(self.epoch, self.epochs):
            for batch, size in enumerate(self.sizes(epoch)):
                if batch not in done:
                    yield Part(epoch, batch, 0, size)
            done = frozenset()

    def _say(self, event: str, **data: Any) -> None:
        self._told.append(Say(event, data))


def _shown(teacher: Teacher) -> dict[str, Any]:
    return {"address": teacher.address, "lease": teacher.lease, "t_t": teacher.t_t}
