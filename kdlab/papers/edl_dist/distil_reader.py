"""The DistilReader of EDL-Dist (section 3.1): what it decides, without any wire.

Facts come in with their time (a teacher answered, a slot is free, the list of teachers
changed, time passed) and instructions come out (send this part to that teacher, hand
over that batch, ask for a teacher). `kdlab/cluster/reader/student_reader.py` carries them out
over real wires, `kdlab/simulate` on a simulated clock, `kdlab.testing.replay` from a log.

It puts together
    roster            sections 3.1, 3.4: its teachers, joined, left and lost
    flow              Algorithm 1: send, hold, one teacher more or less
    batches           each batch from fresh to handed over
    in_flight         section 3.4: every sample exactly once; whose turn it is
and what is beyond the paper
    beyond/placing    which teacher gets which part
    beyond/patience   what is known of each teacher: rate, deadlines
    beyond/hedging    a second teacher for what is late
    beyond/trust      some answers are computed twice
"""

from collections.abc import Callable, Collection, Mapping, Sequence

from kdlab.papers.edl_dist import reader_instructions as tell
from kdlab.papers.edl_dist.batches import Batches
from kdlab.papers.edl_dist.beyond.hedging import Hedging
from kdlab.papers.edl_dist.beyond.patience import Patience
from kdlab.papers.edl_dist.beyond.placing import Placing
from kdlab.papers.edl_dist.beyond.trust import Trust, Witness
from kdlab.papers.edl_dist.flow import Flow
from kdlab.papers.edl_dist.in_flight import InFlight, Part
from kdlab.papers.edl_dist.leases import Fate
from kdlab.papers.edl_dist.reader_instructions import Instructions
from kdlab.papers.edl_dist.reader_rules import Rules, Teacher
from kdlab.papers.edl_dist.roster import Roster


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
        self.sizes, self.cached = sizes, cached
        self.batches = Batches(
            sizes, epochs=epochs, epoch=epoch, done=done, order=rules.order
        )
        # Of a whole epoch: the first may be a rest. All after it are alike.
        largest = max(sizes(self.batches.epoch + 1), default=1)
        self.teachers: dict[str, Teacher] = {}
        self.ledger = InFlight(limit=rules.per_teacher, part_s=rules.part_s)
        self.trust = Trust(self.ledger, self.teachers, rules.check_share)
        patience, wait_s = Patience(give_up_s=rules.deadline_s), rules.wait_s
        self.roster = Roster(
            *(self.ledger, patience, self.trust, self.teachers, largest, wait_s, time, time)
        )
        self.flow = Flow(rules, largest, self.ledger, self.batches, self.roster)
        self.placing = Placing(self.ledger, self.batches, self.flow.supply)
        needed, said = self.placing.needed_in_s, self.roster.said
        self.hedging = Hedging(
            self.ledger, patience, rules.hedge, time, needed_in_s=needed, said=said
        )
        self.slots_taken = 0
        self.batches_delivered = 0

    # Facts

    def on_announced(self) -> None:
        """The coordinator has the demand: line 1 of Algorithm 1 is under way."""
        self.flow.on_announced()

    def on_teachers(
        self,
        given: Collection[Teacher],
        gone: Mapping[str, Fate],
        full: bool,
        time: float,
    ) -> Instructions:
        """What the coordinator says is new; with `full`, all there is."""
        told, joined = self.roster.on_teachers(given, gone, full=full)
        if joined:
            self.flow.on_joined(time)
        told += self.roster.on_changed(time)
        return [*told, *self.flow.static_share(), *self.pump(time)]

    def on_answer(self, part: Part, teacher: str, lease: int, time: float) -> Instructions:
        """Usable soft labels of a part have arrived."""
        sent, counts = self.ledger.on_answer(part, teacher, lease)
        self.roster.on_answer(part, teacher, sent, time, counts=counts)
        if sent is None or not counts:  # 3.4: exactly one answer to a part counts
            return self.pump(time)
        self.flow.supply.on_answer(time - sent.time)
        told = [tell.Keep(part), *self.trust.on_answer(part, Witness(teacher, lease), time)]
        self._arrived(part)
        return [*told, *self.pump(time)]

    def on_compared(
        self,
        part: Part,
        teacher: str,
        lease: int,
        agrees_with: Collection[tuple[str, int]],
        time: float,
    ) -> Instructions:
        """A check's answer was compared with those kept: it equals these teachers' ones."""
        sent = self.ledger.on_checked(part, teacher, lease)
        self.roster.on_answer(part, teacher, sent, time, counts=False)
        agrees = [Witness(*who) for who in agrees_with]
        wrong = self.trust.on_compared(part, Witness(teacher, lease), agrees)
        told = [] if wrong is None else self._distrust(wrong, part, time)
        told += self.trust.go_on(part, time)
        return [*told, *self.pump(time)]

    def _distrust(self, wrong: Witness, part: Part, time: float) -> Instructions:
        """Its soft labels are wrong: none of them is trained on from here on."""
        again = 0
        for key, samples in self.trust.take_back(wrong):
            self.batches.take_back(key, samples)
            again += samples
        self.flow.unused -= again
        lied = self.trust.found(wrong, part, again)
        why = "its soft labels differ from those of the other teachers"
        trouble = self.roster.on_trouble(*wrong, why, unusable=True, time=time)
        return [tell.EmitEvent(lied), *trouble]

    def on_trouble(
        self, teacher: str, lease: int, why: str, *, unusable: bool, time: float
    ) -> Instructions:
        """A request came to nothing: no connection, no answer in time, or a bad one.

        With `unusable` it answered, and the answer cannot be used; `why` is for people.
        """
        told = self.roster.on_trouble(teacher, lease, why, unusable=unusable, time=time)
        return [*told, *self.pump(time)]

    def on_slot_free(self, samples: int, time: float) -> Instructions:
        """The trainer has used a batch of so many samples."""
        self.slots_taken -= 1
        self.flow.unused -= samples
        self.flow.supply.on_trained(samples, time)
        if self._waits():
            self.flow.supply.on_waits(time)
        return self.pump(time)

    def on_thresholds(self, lt: int, ut: int, time: float) -> Instructions:
        """Somebody set them, in samples; the policy goes on from where it is."""
        self.flow.on_thresholds(lt, ut)
        return self.pump(time)

    def on_paused(self, paused: bool, time: float) -> None:  # one fact, recorded as it is
        """A student that stands still neither needs more teachers nor fewer."""
        self.flow.supply.on_paused(paused, time, waits=self.slots_taken == 0)

    def on_ask_failed(self) -> None:
        """The coordinator could not be asked; the next look may ask again."""
        self.flow.on_ask_failed()

    def on_need_failed(self) -> None:
        self.flow.announced = False  # until the coordinator answers

    def on_release_failed(self, teacher: str) -> None:
        self.roster.releasing.discard(teacher)

    def on_tick(self, time: float) -> Instructions:
        """The monitoring task (Algorithm 1, line 3), every 50 ms or so."""
        self.ledger.on_tick(time)
        self.flow.on_tick(time, waits=self._waits())
        told = Instructions()
        why = f"no answer within {self.flow.rules.deadline_s:g} s"
        for teacher, lease in self.hedging.overdue(time):
            told += self.roster.on_trouble(teacher, lease, why, unusable=False, time=time)
        self.placing.look(time)
        fed = self.slots_taken > 0 or self.flow.unused > 0 or not self.work_is_open()
        if self.roster.is_missed(fed, time):
            unplaced, why = self.ledger.samples, self.roster.last_trouble
            told.append(tell.Fail(unplaced, self.batches_delivered, why))
        return [*told, *self.flow.look(time), *self.pump(time)]

    # What is seen

    def work_is_open(self) -> bool:
        return self.ledger.samples > 0 or self.batches.next is not None

    def _waits(self) -> bool:
        """The trainer has nothing left to train on."""
        return not self.slots_taken and self.work_is_open()

    def figures(self) -> dict[str, float]:
        """What people and MLflow see, in the units of `Rules`."""
        flow, supply = self.flow, self.flow.supply
        return {
            "volume": flow.unused,
            "in_flight": self.ledger.samples,
            "volume_max": flow.volume_max,
            "teachers": len(self.teachers),
            "resends": self.ledger.resends,
            "hedges": self.ledger.hedges,
            "stored_mb": flow.unused * flow.rules.sample_mb,
            "stability_mean": flow.stability.mean,
            "credit": supply.credit,
            "latency_s": supply.latency_s,
            "capacity": supply.capacity,
            "starved_s": supply.starved.waited_s,
            "held_s": supply.starved.held_s,
        }

    # What has become possible

    def pump(self, time: float) -> Instructions:
        """Batches are handed over, Algorithm 1 looks, and parts are sent."""
        told = self._deliver()
        if self.slots_taken:
            self.flow.supply.on_fed(time)
        told += [*self.flow.pump(time), *self._send(time)]
        self.flow.volume_max = max(self.flow.volume_max, self.flow.unused)
        return told

    def _deliver(self) -> Instructions:
        """Algorithm 2, lines 3 and 4: a batch with its soft labels."""
        told = Instructions()
        while self.slots_taken < self.flow.rules.slots:
            key = self.batches.deliver()
            if key is None:
                break
            self.slots_taken += 1
            self.batches_delivered += 1
            self.trust.on_delivered(key)
            told.append(tell.Deliver(*key))
        return told

    def _send(self, time: float) -> Instructions:
        told = Instructions()
        for part, second in self.hedging.sendable(time):
            lease = self.teachers[second].lease
            self.ledger.on_hedged(part, second, lease, time)
            told.append(tell.Send(part, second, lease))
        while True:
            told.extend(self._take_cached())
            given = self.placing.again() or self.placing.fresh(lambda: self._begins(told))
            if given is None:
                return told
            part, address = given
            lease = self.teachers[address].lease
            self.ledger.on_sent(part, address, lease, time)
            told.append(tell.Send(part, address, lease))

    def _begins(self, told: Instructions) -> bool:
        """Whether one batch more may be asked for, which it is from now on.

        It counts as a whole, whatever the volume: half a batch could never be trained on.
        """
        whole = self.batches.next
        if whole is None or self._is_asked_for_already(whole):
            return False
        if not self.flow.may_send(whole.size):  # lines 4 to 6
            return False
        self.ledger.on_fresh(self.batches.begin())
        told += self._take_cached()
        return True

    def _is_asked_for_already(self, whole: Part) -> bool:
        """Labels of the same views are in the cache, or under way and will be soon."""
        views = self.flow.rules.cache_views
        if views is not None and any(
            e <= whole.epoch - views for e, _ in self.batches.missing
        ):
            return True
        return self.cached(whole.epoch, whole.batch)

    def _take_cached(self) -> Instructions:
        """Batches whose soft labels are known need no teacher."""
        told = Instructions()
        while (part := self.batches.next) is not None:
            if not self.cached(part.epoch, part.batch) or not self.flow.has_room(part.size):
                break
            self.ledger.on_fresh(self.batches.begin())
            self.batches.cut(len(self.batches.open) - 1, part.size)
            self.ledger.on_cached(part)
            self._arrived(part)
            told += [tell.TakeCached(part), *self._deliver()]
        return told

    def _arrived(self, part: Part) -> None:
        self.flow.unused += part.size
        self.hedging.on_arrived(part)
        self.batches.arrived(part)
