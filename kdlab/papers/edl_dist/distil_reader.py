"""The decisions of EDL-Dist's DistilReader (section 3.1), without any I/O.

Events come in with their time, instructions go out. `kdlab/cluster/reader/student_reader.py`
executes them over sockets, `kdlab/simulate` on a simulated clock, `kdlab.testing` from a log.

    event                            first effect                        instructions
    -------------------------------  ----------------------------------  ----------------------
    on_teachers  the list changed    roster: joined, left, lost          EmitEvent, Need
    on_answer    soft labels came    in_flight: one answer counts        Keep, Check
    on_compared  a check came back   trust: who is wrong                 ReportBadTeacher
    on_trouble   a request failed    in_flight: its parts wait again     ReturnTeacher
    on_slot_free a batch was used    flow: the volume falls
    on_tick      50 ms passed        flow: Algorithm 1, lines 3 to 12    AskTeacher, Release
    any of them  `pump`              batches: complete ones go first     Deliver, Send

The parts that follow the paper:
    roster            sections 3.1 and 3.4: teachers that joined, left or were lost
    flow              Algorithm 1: send, hold, one teacher more or less
    batches           each batch from fresh to delivered
    in_flight         section 3.4: every sample exactly once
The parts beyond the paper:
    beyond/placing    which teacher gets which part
    beyond/patience   rate and deadlines of each teacher, as observed
    beyond/hedging    a second teacher for late parts
    beyond/trust      some answers are computed twice
"""

from collections.abc import Callable, Collection, Mapping, Sequence

from kdlab.papers.edl_dist.batches import Batches
from kdlab.papers.edl_dist.beyond.hedging import Hedging
from kdlab.papers.edl_dist.beyond.patience import Patience
from kdlab.papers.edl_dist.beyond.placing import Placing
from kdlab.papers.edl_dist.beyond.trust import Trust, Witness
from kdlab.papers.edl_dist.flow import Flow
from kdlab.papers.edl_dist.in_flight import InFlight, Part
from kdlab.papers.edl_dist.leases import Fate
from kdlab.papers.edl_dist.reader_instructions import (
    Deliver,
    EmitEvent,
    Fail,
    Instructions,
    Keep,
    Send,
    TakeCached,
)
from kdlab.papers.edl_dist.reader_rules import Rules, Teacher
from kdlab.papers.edl_dist.roster import Roster


class DistilReader:  # 3.1: "an interface among the three modules"
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
        """Read the batches of `epoch` that are not in `done`, and those of all later epochs.

        Args:
            rules: thresholds in samples, times in seconds.
            sizes: samples in each batch of an epoch.
            epochs: number of epochs; the training ends before this one.
            epoch: the first epoch.
            done: batches of the first epoch that were trained on before.
            cached: returns whether the soft labels of (epoch, batch) are stored already.
            time: the current time in seconds.
        """
        self.sizes, self.cached = sizes, cached
        self.batches = Batches(
            sizes, epochs=epochs, epoch=epoch, done=done, order=rules.order
        )
        # From a complete epoch: the first one may be a rest. All after it are alike.
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
        needed, stated = self.placing.needed_in_s, self.roster.stated_rate
        self.hedging = Hedging(
            self.ledger, patience, rules.hedge, time, needed_in_s=needed, stated_rate=stated
        )
        self.slots_taken = 0  # complete batches that the trainer has or is about to use
        self.batches_delivered = 0  # in all, for the error of a run that fails

    # Events

    def on_announced(self) -> None:
        """The coordinator knows the demand: line 1 of Algorithm 1 is under way."""
        self.flow.on_announced()

    def on_teachers(
        self,
        reported: Collection[Teacher],
        gone: Mapping[str, Fate],
        full: bool,
        time: float,
    ) -> Instructions:
        """Update the list of teachers; with `full`, `reported` replaces the whole list.

        3.1: the reader gets from the coordinator which teachers it has and which are available.
        """
        instructions, joined = self.roster.on_teachers(reported, gone, full=full)
        if joined:
            self.flow.on_joined(time)  # Algorithm 1, line 8 is done
        instructions += self.roster.on_changed(time)
        # Line 1's n is only reported: the coordinator covers t_s, whatever the teachers' types.
        return [*instructions, *self.flow.static_share(), *self.pump(time)]

    def on_answer(self, part: Part, teacher: str, lease: int, time: float) -> Instructions:
        """Count usable soft labels of a part (3.1: the reader receives them from teachers)."""
        sent, counts = self.ledger.on_answer(part, teacher, lease)
        self.roster.on_answer(part, teacher, sent, time, counts=counts)
        # Case 3 of 3.4 re-sends inputs, so a second answer may come. The paper does not say what
        # happens to it; here exactly one answer to a part counts.
        if sent is None or not counts:
            return self.pump(time)
        self.flow.supply.on_answer(time - sent.time)
        checks = self.trust.on_answer(part, Witness(teacher, lease), time)
        self._arrived(part)
        return [Keep(part), *checks, *self.pump(time)]

    def on_compared(
        self,
        part: Part,
        teacher: str,
        lease: int,
        agrees_with: Collection[tuple[str, int]],
        time: float,
    ) -> Instructions:
        """Settle a check: its answer equals those of the teachers in `agrees_with`."""
        sent = self.ledger.on_checked(part, teacher, lease)
        self.roster.on_answer(part, teacher, sent, time, counts=False)
        agrees = [Witness(*who) for who in agrees_with]
        wrong = self.trust.on_compared(part, Witness(teacher, lease), agrees)
        instructions = [] if wrong is None else self._distrust(wrong, part, time)
        instructions += self.trust.continue_case(part, time)
        return [*instructions, *self.pump(time)]

    def _distrust(self, wrong: Witness, part: Part, time: float) -> Instructions:
        """Take back the soft labels of a teacher that gave wrong ones; none is trained on."""
        again = 0  # beyond the paper, which trusts its teachers
        for key, samples in self.trust.take_back(wrong):
            self.batches.take_back(key, samples)
            again += samples
        self.flow.unused -= again
        disagreement = self.trust.on_wrong(wrong, part, again)
        why = "its soft labels differ from those of the other teachers"
        trouble = self.roster.on_trouble(*wrong, why, unusable=True, time=time)
        return [EmitEvent(disagreement), *trouble]

    def on_trouble(
        self, teacher: str, lease: int, why: str, *, unusable: bool, time: float
    ) -> Instructions:
        """Give up a lease after a request failed: no connection, no answer or a bad one.

        With `unusable` the teacher answered, but the answer cannot be used. `why` is for people.
        """
        # The paper detects a loss by the TTL alone (3.4); a failed request shows it sooner.
        trouble = self.roster.on_trouble(teacher, lease, why, unusable=unusable, time=time)
        return [*trouble, *self.pump(time)]

    def on_slot_free(self, samples: int, time: float) -> Instructions:
        """The trainer has used a batch of `samples` samples."""
        self.slots_taken -= 1  # Algorithm 2, line 5 is done: these labels are used
        self.flow.unused -= samples
        self.flow.supply.on_trained(samples, time)
        if self._waits():
            self.flow.supply.on_waits(time)
        return self.pump(time)

    def on_thresholds(self, lt: int, ut: int, time: float) -> Instructions:
        """Change the thresholds (samples) while the schedule runs.

        3.2: "can be set by the user based on the size of storage in the resource of Student".
        """
        self.flow.on_thresholds(lt, ut)
        return self.pump(time)

    def on_paused(self, paused: bool, time: float) -> None:  # a journal has it like this
        """Pause or continue: a student at rest needs neither more teachers nor fewer."""
        self.flow.supply.on_paused(paused, time, waits=self.slots_taken == 0)

    def on_ask_failed(self) -> None:
        """The request for a teacher did not reach the coordinator; the next tick may repeat it."""
        self.flow.on_ask_failed()

    def on_need_failed(self) -> None:
        self.flow.announced = False  # until the coordinator answers

    def on_release_failed(self, teacher: str) -> None:
        self.roster.releasing.discard(teacher)

    def on_tick(self, time: float) -> Instructions:
        """Run the monitoring task (Algorithm 1, line 3), about every 50 ms."""
        # The paper names no period. Lines 2 to 13 loop; here each tick is one turn of that loop.
        self.ledger.on_tick(time)
        self.flow.on_tick(time, waits=self._waits())
        instructions = Instructions()
        why = f"no answer within {self.flow.rules.deadline_s:g} s"
        for teacher, lease in self.hedging.overdue(time):
            instructions += self.roster.on_trouble(
                teacher, lease, why, unusable=False, time=time
            )
        self.placing.update(time)
        # 3.4 sets no limit to the search for another teacher; here `wait_s` does.
        fed = self.slots_taken > 0 or self.flow.unused > 0 or not self.work_is_open()
        if self.roster.is_missed(fed, time):
            unplaced, why = self.ledger.samples, self.roster.last_trouble
            instructions.append(Fail(unplaced, self.batches_delivered, why))
        return [*instructions, *self.flow.update(time), *self.pump(time)]

    # State

    def work_is_open(self) -> bool:  # line 2: "while ... is not terminated"
        return self.ledger.samples > 0 or self.batches.next is not None

    def _waits(self) -> bool:
        """True where the trainer has nothing to train on (3.2: "stay idle")."""
        return not self.slots_taken and self.work_is_open()

    def figures(self) -> dict[str, float]:
        """Metrics for people and MLflow, in the units of `Rules`."""
        flow, supply = self.flow, self.flow.supply
        return {
            "volume": flow.unused,  # line 3, in samples: the paper multiplies by their size
            "in_flight": self.ledger.samples,
            "volume_max": flow.volume_max,
            "teachers": len(self.teachers),
            "resends": self.ledger.resends,
            "hedges": self.ledger.hedges,
            # 3.2: number times average size
            "stored_mb": flow.unused * flow.rules.sample_mb,
            "stability_mean": flow.stability.mean,  # Formula 2 (journal)
            "credit": supply.credit,
            "latency_s": supply.latency_s,
            "capacity": supply.capacity,
            "starved_s": supply.starved.waited_s,
            "held_s": supply.starved.held_s,
        }

    # Actions

    def pump(self, time: float) -> Instructions:
        """Deliver complete batches, run Algorithm 1 once and send parts."""
        # First, so that a wait ends before Algorithm 1 looks
        instructions = self._deliver()
        if self.slots_taken:
            self.flow.supply.on_fed(time)
        instructions += [*self.flow.pump(time), *self._send(time)]
        self.flow.volume_max = max(self.flow.volume_max, self.flow.unused)
        return instructions

    def _deliver(self) -> Instructions:
        """Hand complete batches to the trainer (Algorithm 2, lines 3 and 4)."""
        instructions = Instructions()
        while self.slots_taken < self.flow.rules.slots:
            key = self.batches.deliver()
            if key is None:
                break
            self.slots_taken += 1
            self.batches_delivered += 1
            self.trust.on_delivered(key)
            instructions.append(Deliver(*key))
        return instructions

    def _send(self, time: float) -> Instructions:
        # 3.1: "DistilReader sends the input data to Teacher"
        instructions = Instructions()
        for part, second in self.hedging.sendable(time):
            lease = self.teachers[second].lease
            self.ledger.on_hedged(part, second, lease, time)
            instructions.append(Send(part, second, lease))
        # Lost parts first: case 3 of 3.4, for whichever teacher takes them soonest
        while True:
            instructions.extend(self._take_cached())
            placed = self.placing.again() or self.placing.fresh(
                lambda: self._begins(instructions)
            )
            if placed is None:
                return instructions
            part, address = placed
            lease = self.teachers[address].lease
            self.ledger.on_sent(part, address, lease, time)
            instructions.append(Send(part, address, lease))

    def _begins(self, instructions: Instructions) -> bool:
        """Begin the next batch where the thresholds allow it; return whether it was begun.

        All of it counts at once, whatever the volume: half a batch could never be trained on.
        """
        full_batch = self.batches.next
        if full_batch is None or self._is_requested(full_batch):
            return False
        if not self.flow.may_send(full_batch.size):  # Algorithm 1, lines 4 to 6
            return False
        self.ledger.on_fresh(self.batches.begin())
        instructions += self._take_cached()
        return True

    def _is_requested(self, full_batch: Part) -> bool:
        """True where labels of the same views are in the cache, or on their way to it."""
        # Offline distillation (sections 1 and 2) stores labels first; a cache does so on the way.
        views = self.flow.rules.cache_views
        if views is not None and any(
            e <= full_batch.epoch - views for e, _ in self.batches.missing
        ):
            return True
        return self.cached(full_batch.epoch, full_batch.batch)

    def _take_cached(self) -> Instructions:
        """Take batches from the cache; their soft labels need no teacher."""
        instructions = Instructions()
        while (part := self.batches.next) is not None:
            if not self.cached(part.epoch, part.batch) or not self.flow.has_room(part.size):
                break
            self.ledger.on_fresh(self.batches.begin())
            self.batches.cut(len(self.batches.open) - 1, part.size)
            self.ledger.on_cached(part)
            self._arrived(part)
            instructions += [TakeCached(part), *self._deliver()]
        return instructions

    def _arrived(self, part: Part) -> None:
        self.flow.unused += part.size
        self.hedging.on_arrived(part)
        self.batches.arrived(part)
