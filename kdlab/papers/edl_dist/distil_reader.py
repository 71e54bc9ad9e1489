"""The DistilReader of EDL-Dist (section 3.1): what it decides, without any wire.

Facts come in with their time (a teacher answered, a slot is free, the list of teachers
changed, time passed) and instructions come out (send this part to that teacher, hand
over that batch, ask for a teacher). `kdlab/cluster/reader/student_reader.py` carries them out
over real wires, `kdlab/simulate` on a simulated clock, `kdlab.testing.replay` from a log.

It puts together
    hybrid_schedule   Algorithm 1: send, hold, one teacher more or less
    placing           which teacher gets which part
    supply            demand, latency, starvation: do the teachers suffice?
    needs             what its teachers must do, and what was told of that
    batches           each batch from fresh to handed over
    in_flight         section 3.4: every sample exactly once; whose turn it is
    patience          what is known of each teacher: rate, deadlines, quarantine
    hedging           a second teacher for what is late
    spot_check        some answers are computed twice
    provenance        whose answers lie here, and were trained on
    stability         Formula 2
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from kdlab.events.event import Event
from kdlab.events.teachers import (
    EngineChanged,
    MemoryLimits,
    Scheduled,
    TeacherLeft,
    TeacherLied,
    TeacherLost,
    TeachersGone,
    ThresholdLimits,
)
from kdlab.papers.edl_dist import reader_instructions as tell
from kdlab.papers.edl_dist.absence import Absence
from kdlab.papers.edl_dist.assignment import choose, static_share
from kdlab.papers.edl_dist.batches import Batches
from kdlab.papers.edl_dist.beyond.hedging import Hedging
from kdlab.papers.edl_dist.hybrid_schedule import (
    Level,
    Schedule,
    on_request_failed,
    on_teacher_joined,
    on_volume,
)
from kdlab.papers.edl_dist.in_flight import InFlight, Part, Sent, Speed
from kdlab.papers.edl_dist.leases import Change
from kdlab.papers.edl_dist.needs import Needs
from kdlab.papers.edl_dist.beyond.patience import Patience
from kdlab.papers.edl_dist.beyond.placing import Placing
from kdlab.papers.edl_dist.beyond.provenance import Provenance, TrainedOn
from kdlab.papers.edl_dist.reader_instructions import Instructions
from kdlab.papers.edl_dist.reader_rules import Rules, Teacher
from kdlab.papers.edl_dist.beyond.spot_check import SpotCheck, Witness
from kdlab.papers.edl_dist.stability import Stability
from kdlab.papers.edl_dist.beyond.supply import Short, Supply

_REPORT_AGAIN_S = 60.0  # between two notices of thresholds that hold the student up
_RELEASED_AT_ONCE = 0.5  # of what is spare: the rest after the next look
_GRACEFUL: tuple[Change, ...] = ("left", "released", "moved")  # its answers still come


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
        self.rules, self.sizes, self.cached = rules, sizes, cached
        self.batches = Batches(
            sizes, epochs=epochs, epoch=epoch, done=done, order=rules.order
        )
        # Of a whole epoch: the first may be a rest. All after it are alike.
        largest = max(sizes(self.batches.epoch + 1), default=1)
        most, policy = rules.max_in_flight, rules.policy
        self.schedule = Schedule(
            lt=rules.lt, ut=rules.ut, batch=largest, max_in_flight=most, policy=policy
        )
        self.supply = Supply(
            t_s=rules.t_s, batch=largest, settle_s=rules.settle_s, window_s=rules.window_s
        )
        self.ledger = InFlight(limit=rules.per_teacher, part_s=rules.part_s)
        self.patience = Patience(give_up_s=rules.deadline_s)
        self.check = SpotCheck(share=rules.check_share)
        self.stability = Stability()
        self.teachers: dict[str, Teacher] = {}
        self.unusable: dict[str, int] = {}  # address -> lease given up on, until it is gone
        self.releasing: set[str] = set()
        self.provenance = Provenance()
        self.needs = Needs(self.supply, self.ledger, self.teachers, rules.t_s)
        self.placing = Placing(self.ledger, self.batches, self.supply, self._begins_next)
        needed, said = self.placing.needed_in_s, self._said
        self.hedging = Hedging(
            self.ledger, self.patience, rules.hedge, time, needed_in_s=needed, said=said
        )
        self._limit_reported_at = float("-inf")  # when limits were said to hold it up
        self._asked = False  # for a teacher that has not come yet
        self._wants = False  # at the last look: the student starved for want of teachers
        self._spare: list[Teacher] = []  # at the last look: those the others can replace
        self.unused = 0  # soft labels that arrived and were not trained on
        self.slots_taken = 0
        self.batches_delivered = 0
        self.volume_max = 0  # of the unused soft labels
        self.room_max = rules.ut  # the most that was allowed to be unused or in flight
        self.announced = False  # the coordinator knows this student's demand
        self.absence = Absence(rules.wait_s, since=time, dry_since=time)
        self.last_trouble = ""
        self._reported_share = False
        self._instructions: Instructions = []

    # Facts

    def on_announced(self) -> None:
        """The coordinator has the demand: line 1 of Algorithm 1 is under way."""
        self.announced, self.needs.told = True, self.rules.t_s

    def on_teachers(
        self,
        given: Collection[Teacher],
        gone: Mapping[str, Change],
        full: bool,
        time: float,
    ) -> Instructions:
        """What the coordinator says is new; with `full`, all there is."""
        changed, gone = False, dict(gone)
        self.patience.prune(self.teachers)
        self.provenance.prune(self.teachers)
        new = {t.address: t for t in given}
        if full:
            gone |= {address: "lost" for address in self.teachers if address not in new}
        for address, how in gone.items():
            changed |= self._on_gone(address, how, new)
        for teacher in given:
            if self.unusable.get(teacher.address) == teacher.lease:
                continue
            self.unusable.pop(teacher.address, None)
            before = self.teachers.get(teacher.address)
            self.teachers[teacher.address] = teacher
            self._learn(teacher)
            if before is None or before.lease != teacher.lease:
                if before is not None:  # lost and assigned again between two looks
                    self.ledger.on_teacher_lost(before.address, before.lease)
                changed = True
                self._joined(time)
                self._say(teacher.joined())
            elif teacher.draining and not before.draining:
                changed = True
                self._say(TeacherLeft(teacher=teacher.name, resent=0))
            elif teacher.engine != before.engine:
                self._say(EngineChanged(teacher=teacher.name, engine=teacher.engine))
        if changed:
            self._teachers_changed(time)
        self._say_static_share()
        return self._pump(time)

    def _on_gone(self, address: str, how: Change, given: Mapping[str, Teacher]) -> bool:
        before = self.teachers.get(address)
        if before is None or (address in given and given[address].lease == before.lease):
            if before is None and address not in given:
                self.unusable.pop(address, None)
            return False
        del self.teachers[address]
        self.ledger.on_unusable(address)
        if how in _GRACEFUL or address in self.releasing:
            self.releasing.discard(address)
            if not before.draining:
                self._say(TeacherLeft(teacher=before.name, resent=0, how=how))
            return True
        again = self.ledger.on_teacher_lost(address, before.lease)
        self.patience.forget(address)
        self._drop_checks(Witness(address, before.lease))
        why = "silent beyond its lease" if how == "expired" else "its connection broke"
        self._say(TeacherLost(teacher=before.name, why=why, resent=again))
        return True

    def on_answer(self, part: Part, teacher: str, lease: int, time: float) -> Instructions:
        """Usable soft labels of a part have arrived."""
        sent, counts = self.ledger.on_answer(part, teacher, lease)
        self._answered(part, teacher, sent, time)
        if sent is not None and counts:
            self.supply.on_answer(time - sent.time)
            self.absence.on_answer()
            self._instructions.append(tell.Keep(part))
            self.provenance.on_answer(part, Witness(teacher, lease))
            self._check(part, Witness(teacher, lease), time)
            self._arrived(part)
        return self._pump(time)

    def _answered(self, part: Part, teacher: str, sent: Sent | None, time: float) -> None:
        if sent is not None:
            facts = self.teachers.get(teacher)
            if facts is not None:
                self.patience.on_answer(teacher, part.size, sent, facts.whole_t_t, time)
                self._learn(facts)

    def on_compared(
        self,
        part: Part,
        teacher: str,
        lease: int,
        agrees_with: Collection[tuple[str, int]],
        time: float,
    ) -> Instructions:
        """A check's answer was compared with those kept: it equals these teachers' ones."""
        asked = Witness(teacher, lease)
        sent = self.ledger.on_checked(part, teacher, lease)
        self._answered(part, teacher, sent, time)
        found = self.check.on_compared(
            part, asked, frozenset(Witness(*w) for w in agrees_with)
        )
        if found is not None:
            self._distrust(found, part, time)
        usable = {a: t.lease for a, t in self.teachers.items() if not t.draining}
        witness = self.check.next_to_ask(part, usable)
        if witness is None:
            self.check.drop(part)
            self._instructions.append(tell.EndCheck(part))
        else:
            self._ask_to_check(part, witness, None, time)
        return self._pump(time)

    def on_trouble(
        self, teacher: str, lease: int, why: str, *, unusable: bool, time: float
    ) -> Instructions:
        """A request came to nothing: no connection, no answer in time, or a bad one.

        With `unusable` it answered, and the answer cannot be used; `why` is for people.
        """
        self._trouble(teacher, lease, why, unusable=unusable, time=time)
        return self._pump(time)

    def _trouble(
        self, teacher: str, lease: int, why: str, *, unusable: bool, time: float
    ) -> None:
        again = self.ledger.on_teacher_lost(teacher, lease)
        facts = self.teachers.get(teacher)
        known = facts is not None and facts.lease == lease  # it may be back under a new one
        if known:
            del self.teachers[teacher]
            self.unusable[teacher] = lease
            self.ledger.on_unusable(teacher)
        self._drop_checks(Witness(teacher, lease))
        if known or again:
            self.last_trouble = why
            name = facts.name if facts else teacher
            self._say(TeacherLost(teacher=name, why=why, resent=again))
            if unusable:
                self._instructions.append(tell.Complain(teacher, lease, why))
            else:
                back_off_s = self.patience.on_failure(teacher)
                self._instructions.append(tell.GiveBack(teacher, lease, back_off_s))
            self._teachers_changed(time)

    def on_slot_free(self, samples: int, time: float) -> Instructions:
        """The trainer has used a batch of so many samples."""
        self.slots_taken -= 1
        self.unused -= samples
        self.supply.on_trained(samples, time)
        if not self.slots_taken and self.work_is_open():
            self.supply.on_waits(time)
        return self._pump(time)

    def on_thresholds(self, lt: int, ut: int, time: float) -> Instructions:
        """Somebody set them, in samples; the policy goes on from where it is."""
        self.rules = replace(self.rules, lt=lt, ut=ut)
        self.schedule = replace(self.schedule, lt=lt, ut=ut)
        return self._pump(time)

    def on_paused(self, paused: bool, time: float) -> None:  # one fact, recorded as it is
        """A student that stands still neither needs more teachers nor fewer."""
        self.supply.on_paused(paused, time, waits=self.slots_taken == 0)

    def on_ask_failed(self) -> None:
        """The coordinator could not be asked; the next look may ask again."""
        self.schedule = on_request_failed(self.schedule)

    def on_need_failed(self) -> None:
        self.announced = False  # until the coordinator answers

    def on_release_failed(self, teacher: str) -> None:
        self.releasing.discard(teacher)

    def on_tick(self, time: float) -> Instructions:
        """The monitoring task (Algorithm 1, line 3), every 50 ms or so."""
        self.ledger.on_tick(time)
        speeds = self.ledger.teachers.values()
        self.supply.on_capacity(sum(speed.rate for speed in speeds), time)
        if not self.slots_taken and self.work_is_open():
            self.supply.on_waits(time)
        self.supply.on_tick(time, held=self._thresholds_hold())
        stored_mb = self.unused * self.rules.sample_mb
        self.stability.on_tick(time, stored_mb, len(speeds))
        for teacher, lease in self.hedging.overdue(time):
            why = f"no answer within {self.rules.deadline_s:g} s"
            self._trouble(teacher, lease, why, unusable=False, time=time)
        self.placing.look(time)
        self._check_teachers(time)
        short = self.supply.short_of(time)
        self._check_limits(short, time)
        self.room_max = max(self.room_max, self.schedule.room(self.level()))
        lacks = self.needs.lacks(time) or short == "teachers"
        self._wants = lacks and not self.supply.paused
        guards = self.announced and self.rules.policy == "guarded"
        if guards and self.needs.has_fallen(time):
            self._instructions.append(tell.Need(self.needs.tell(asked=False)))
        self._spare = self._not_needed(time)
        return self._pump(time)

    def level(self) -> Level:
        supply = self.supply
        return Level(
            unused=self.unused,
            in_flight=self.ledger.samples,
            lead=0 if self.schedule.sending else supply.lead,  # read where it may begin to
            credit=supply.credit,
            wants_teacher=self._wants,
            spares_teacher=bool(self._spare),
        )

    def figures(self) -> dict[str, float]:
        """What people and MLflow see, in the units of `Rules`."""
        return {
            "volume": self.unused,
            "in_flight": self.ledger.samples,
            "volume_max": self.volume_max,
            "teachers": len(self.teachers),
            "resends": self.ledger.resends,
            "hedges": self.ledger.hedges,
            "stored_mb": self.unused * self.rules.sample_mb,
            "stability_mean": self.stability.mean,
            "credit": self.supply.credit,
            "latency_s": self.supply.latency_s,
            "capacity": self.supply.capacity,
            "starved_s": self.supply.waited_s,
            "held_s": self.supply.held_s,
        }

    def work_is_open(self) -> bool:
        return self.ledger.samples > 0 or self.batches.next is not None

    def _said(self, teacher: str) -> float | None:
        facts = self.teachers.get(teacher)
        return None if facts is None else facts.whole_t_t

    # What time brings

    def _check_teachers(self, time: float) -> None:
        fed = self.slots_taken > 0 or self.unused > 0 or not self.work_is_open()
        if self.absence.on_tick(fed, time):
            self._instructions.append(
                tell.Fail(self.ledger.samples, self.batches_delivered, self.last_trouble)
            )

    def _check_limits(self, short: Short, time: float) -> None:
        """The user's own bound keeps the student waiting: say so, with what would do."""
        if self.supply.paused or short != "thresholds":
            return
        if time - self._limit_reported_at < _REPORT_AGAIN_S:
            return
        self._limit_reported_at = time
        level = self.level()
        most = self.rules.max_in_flight
        if most is not None and self.ledger.samples + self.schedule.batch > most:
            self._say(MemoryLimits(limit=most, enough=level.credit))
        else:
            enough = 2 * max(self.schedule.room(level), self.unused + self.ledger.samples)
            self._say(ThresholdLimits(ut=self.rules.ut, enough=enough))

    def _thresholds_hold(self) -> bool:
        """A teacher has nothing to do although there is work."""
        whole = self.batches.next
        if whole is None or self.ledger.waiting or self.batches.open:
            return False
        if self.schedule.may_send(self.level(), whole.size):
            return False
        return self.ledger.stands_idle()

    def _not_needed(self, time: float) -> list[Teacher]:
        """The slowest teachers that the others can do without, about half of them."""
        at_once = self.supply.spare(time) * _RELEASED_AT_ONCE  # nothing while it is paused
        if at_once <= 0:
            return []
        rates = {name: speed.rate for name, speed in self.ledger.teachers.items()}
        kept = set(choose(rates, self.supply.needed()))
        spare: list[Teacher] = []
        for name in sorted(rates, key=lambda name: (rates[name], name)):
            if name in kept or name in self.releasing:
                continue
            if spare and rates[name] > at_once:
                break
            spare.append(self.teachers[name])
            at_once -= rates[name]
        return spare

    def _learn(self, teacher: Teacher) -> None:
        """What the ledger has to know of a teacher."""
        if teacher.draining:
            self.ledger.on_unusable(teacher.address)
            return
        address, known = teacher.address, self.patience
        speed = Speed(
            rate=min(known.rate(address, teacher.whole_t_t), teacher.pace),
            least=teacher.min_batch,
            most=min(teacher.best_batch, self.schedule.batch),  # no part is larger
            way_s=known.way_s(address),
            ahead_s=known.ahead_s(address),
            pace=teacher.pace,
        )
        self.ledger.on_speed(address, speed)

    def _joined(self, time: float) -> None:
        """A teacher that was asked for: what it changes is looked at afresh."""
        self.schedule = on_teacher_joined(self.schedule)
        if self._asked:
            self._asked = False
            self.supply.begin(time)

    def _teachers_changed(self, time: float) -> None:
        if self.absence.on_teachers(bool(self.teachers), time):
            self._say(TeachersGone(unplaced=self.ledger.samples, wait_s=self.rules.wait_s))

    # Trust

    def _check(self, part: Part, first: Witness, time: float) -> None:
        if not self.check.on_answer() or part in self.check.cases:
            return
        second = self.ledger.second(part, (first.teacher,), room=True)
        if second is None:
            return  # the next answer is as good
        witness = Witness(second, self.teachers[second].lease)
        self.check.open(part, first, witness)
        self._ask_to_check(part, witness, first, time)

    def _ask_to_check(
        self, part: Part, witness: Witness, first: Witness | None, time: float
    ) -> None:
        self.ledger.on_check(part, witness.teacher, witness.lease, time)
        given = None if first is None else (first.teacher, first.lease)
        self._instructions.append(tell.Check(part, witness.teacher, witness.lease, given))

    def _drop_checks(self, witness: Witness) -> None:
        self._instructions += map(tell.EndCheck, self.check.on_gone(witness))

    def _distrust(self, wrong: Witness, part: Part, time: float) -> None:
        """Its soft labels are wrong: none of them is trained on from here on."""
        again = 0
        for key, parts in self.provenance.take_back(wrong):
            samples = sum(p.size for p in parts)
            self.batches.take_back(key, samples)
            self.unused -= samples
            self.ledger.on_taken_back(parts)
            again += samples
        used = self.provenance.trained.pop(wrong, TrainedOn())
        why = "its soft labels differ from those of the other teachers"
        name = self.teachers[wrong.teacher].name if wrong.teacher in self.teachers else ""
        self._say(
            TeacherLied(
                teacher=name or wrong.teacher,
                epoch=part.epoch,
                batch=part.batch,
                sent_again=again,
                trained=used.samples,
                first_trained=used.first and [*used.first],
                last_trained=used.last and [*used.last],
            )
        )
        self._trouble(wrong.teacher, wrong.lease, why, unusable=True, time=time)

    def _say_static_share(self) -> None:
        """Line 1 of Algorithm 1, once, for the record."""
        if self.teachers and not self._reported_share:
            self._reported_share = True
            mean = sum(t.t_t for t in self.teachers.values()) / len(self.teachers)
            n = static_share(self.rules.t_s, mean)
            self._say(Scheduled(t_s=self.rules.t_s, t_t=mean, n=n, got=len(self.teachers)))

    # What has become possible

    def _pump(self, time: float) -> Instructions:
        self._deliver()
        if self.slots_taken:
            self.supply.on_fed(time)
        self._schedule(time)
        self._send(time)
        self.volume_max = max(self.volume_max, self.unused)
        instructions, self._instructions = self._instructions, []
        return instructions

    def _schedule(self, time: float) -> None:
        if self.supply.paused:
            return
        self.schedule, instructions = on_volume(self.schedule, self.level())
        if "request_teacher" in instructions:
            if self.announced:
                self._asked = True
                self.supply.begin(time)
                need = 0.0 if self.rules.policy == "paper" else self.needs.tell(asked=True)
                self._instructions.append(tell.AskTeacher(need))
            else:  # line 1 comes first
                self.schedule = on_request_failed(self.schedule)
        if "release_teacher" in instructions:
            need = self.needs.tell(asked=True)
            for teacher in self._spare:
                self.releasing.add(teacher.address)
                self._instructions.append(
                    tell.Release(teacher.address, teacher.lease, need)
                )
            self.supply.begin(time)
        self._wants, self._spare = False, []
        # send_inputs and hold_inputs are states of the schedule, read by _send

    def _deliver(self) -> None:
        while self.slots_taken < self.rules.slots:
            key = self.batches.deliver()
            if key is None:
                return
            self.slots_taken += 1
            self.batches_delivered += 1
            self.provenance.on_delivered(key)
            self._instructions.append(tell.Deliver(*key))

    def _send(self, time: float) -> None:
        for part, second in self.hedging.sendable(time):
            lease = self.teachers[second].lease
            self.ledger.on_hedged(part, second, lease, time)
            self._instructions.append(tell.Send(part, second, lease))
        while (given := self._next_part()) is not None:
            part, address = given
            lease = self.teachers[address].lease
            self.ledger.on_sent(part, address, lease, time)
            self._instructions.append(tell.Send(part, address, lease))

    def _next_part(self) -> tuple[Part, str] | None:
        self._take_cached()
        return self.placing.again() or self.placing.fresh()

    def _begins_next(self) -> bool:
        """Whether one batch more may be asked for, which it is from now on.

        It counts as a whole, whatever the volume: half a batch could never be trained on.
        """
        whole = self.batches.next
        if whole is None or self._is_asked_for_already(whole):
            return False
        if not self.schedule.may_send(self.level(), whole.size):
            return False
        self._begin()
        self._take_cached()
        return True

    def _is_asked_for_already(self, whole: Part) -> bool:
        """Labels of the same views are in the cache, or under way and will be soon."""
        views = self.rules.cache_views
        if views is not None and any(
            e <= whole.epoch - views for e, _ in self.batches.missing
        ):
            return True
        return self.cached(whole.epoch, whole.batch)

    def _take_cached(self) -> None:
        """Batches whose soft labels are known need no teacher."""
        while (part := self.batches.next) is not None:
            if not self.cached(part.epoch, part.batch):
                return
            ahead = self.unused + self.ledger.samples
            if ahead + part.size > self.schedule.room(self.level()):
                return
            self._begin()
            self.batches.cut(len(self.batches.open) - 1, part.size)
            self.ledger.on_cached(part)
            self._instructions.append(tell.TakeCached(part))
            self._arrived(part)
            self._deliver()

    def _begin(self) -> None:
        self.ledger.on_fresh(self.batches.begin())

    def _arrived(self, part: Part) -> None:
        self.unused += part.size
        self.hedging.on_arrived(part)
        self.batches.arrived(part)

    def _say(self, event: Event) -> None:
        self._instructions.append(tell.Say(event))
