"""How much a student asks for, and of how many teachers: Algorithm 1 with what it looks at.

hybrid_schedule.py decides; here is its monitoring task (line 3), which sees the volume, and for
the guarded policy whether the teachers suffice (beyond/flow_control.py). Telling the coordinator
how much the student needs is beyond the paper, which measures a student once, by itself: that
may be wrong by a quarter, and where several students share a pool too small, what one holds and
does not need is what another waits for.
"""

from dataclasses import replace

from kdlab.events.teachers import MemoryLimits, Scheduled, ThresholdLimits
from kdlab.papers.edl_dist import reader_instructions as tell
from kdlab.papers.edl_dist.assignment import choose, static_share
from kdlab.papers.edl_dist.batches import Batches
from kdlab.papers.edl_dist.beyond.flow_control import FlowControl, Short, StudentPace
from kdlab.papers.edl_dist.hybrid_schedule import BufferState, Schedule, on_volume
from kdlab.papers.edl_dist.in_flight import InFlight
from kdlab.papers.edl_dist.reader_instructions import EmitEvent, Instructions
from kdlab.papers.edl_dist.reader_rules import Rules, Teacher
from kdlab.papers.edl_dist.roster import Roster
from kdlab.papers.edl_dist.stability import Stability

_REPORT_AGAIN_S = 60.0  # between two notices of thresholds that hold the student up
_RELEASED_AT_ONCE = 0.5  # of what is spare: the rest after the next look
_MORE = 1.05  # times the need that was asked for: the coordinator cannot know
_LESS = 0.9  # times the need that was told: that is worth a word
_SLOWER = 4.0  # at most, than they say: one that hangs is replaced by those that answer


class Flow:
    def __init__(
        self, rules: Rules, batch: int, ledger: InFlight, batches: Batches, roster: Roster
    ) -> None:
        """The flow of a student whose largest batch has so many samples."""
        self.rules, self.ledger, self.batches, self.roster = rules, ledger, batches, roster
        most, policy = rules.max_in_flight, rules.policy
        self.schedule = Schedule(
            lt=rules.lt, ut=rules.ut, batch=batch, max_in_flight=most, policy=policy
        )
        self.supply = FlowControl(
            StudentPace(rules.t_s, batch), rules.settle_s, rules.window_s
        )
        self.stability = Stability()
        self.unused = 0  # soft labels that arrived and were not trained on
        self.volume_max = 0  # of these
        self.room_max = rules.ut  # the most that was allowed to be unused or in flight
        self.announced = False  # the coordinator knows this student's demand
        self.need_told = rules.t_s  # samples/s: what the coordinator reckons with
        self.need_asked = 0.0  # samples/s, when teachers were asked for or released last
        self._asked = False  # for a teacher that has not come yet
        self._wants = False  # at the last look: the student starved for want of teachers
        self._spare: list[Teacher] = []  # at the last look: those the others can replace
        self._limit_reported_at = float("-inf")  # when limits were said to hold it up
        self._reported_share = False

    # Facts

    def on_announced(self) -> None:
        self.announced, self.need_told = True, self.rules.t_s

    def on_joined(self, time: float) -> None:
        """A teacher that was asked for: what it changes is looked at afresh."""
        self.schedule = self.schedule.may_ask()
        if self._asked:
            self._asked = False
            self.supply.begin(time)

    def on_ask_failed(self) -> None:
        self.schedule = self.schedule.may_ask()

    def on_thresholds(self, lt: int, ut: int) -> None:
        self.rules = replace(self.rules, lt=lt, ut=ut)
        self.schedule = replace(self.schedule, lt=lt, ut=ut)

    def on_tick(self, time: float, *, waits: bool) -> None:
        """Time has passed; `waits`: the trainer has nothing to train on."""
        rates = [speed.rate for speed in self.ledger.teachers.values()]
        self.supply.on_capacity(sum(rates), time)
        if waits:
            self.supply.on_waits(time)
        self.supply.on_tick(time, held=self._thresholds_hold())
        self.stability.on_tick(time, self.unused * self.rules.sample_mb, len(rates))

    # What is seen

    def level(self) -> BufferState:
        """Line 3: volume = get_volume(unused soft labels)."""
        supply = self.supply
        return BufferState(
            unused=self.unused,
            in_flight=self.ledger.samples,
            lead=0 if self.schedule.sending else supply.lead,  # read where it may begin to
            credit=supply.credit,
            wants_teacher=self._wants,
            spares_teacher=bool(self._spare),
        )

    def may_send(self, samples: int) -> bool:
        return self.schedule.may_send(self.level(), samples)

    def has_room(self, samples: int) -> bool:
        """For labels that need no teacher."""
        ahead = self.unused + self.ledger.samples
        return ahead + samples <= self.schedule.room(self.level())

    def _thresholds_hold(self) -> bool:
        """A teacher has nothing to do although there is work."""
        whole = self.batches.next
        if whole is None or self.ledger.waiting or self.batches.open:
            return False
        return not self.may_send(whole.size) and self.ledger.stands_idle()

    def look(self, time: float) -> Instructions:
        """Whether the teachers suffice; what is told of that."""
        short = self.supply.short_of(time)
        told = self._limits(short, time)
        self.room_max = max(self.room_max, self.schedule.room(self.level()))
        # More is missing than was asked for
        lacks = self.supply.lacks_rate(time) and self._need() > _MORE * self.need_asked
        self._wants = (lacks or short == "teachers") and not self.supply.paused
        guards = self.announced and self.rules.policy == "guarded"
        if guards and self._need_has_fallen(time):
            told.append(tell.Need(self._tell_need()))
        self._spare = self._not_needed(time)
        return told

    def _limits(self, short: Short, time: float) -> Instructions:
        """The user's own bound keeps the student waiting: say so, with what would do."""
        if self.supply.paused or short != "thresholds":
            return []
        if time - self._limit_reported_at < _REPORT_AGAIN_S:
            return []
        self._limit_reported_at = time
        level, most = self.level(), self.rules.max_in_flight
        if most is not None and self.ledger.samples + self.schedule.batch > most:
            return [EmitEvent(MemoryLimits(limit=most, enough=level.credit))]
        enough = 2 * max(self.schedule.room(level), self.unused + self.ledger.samples)
        return [EmitEvent(ThresholdLimits(ut=self.rules.ut, enough=enough))]

    def _not_needed(self, time: float) -> list[Teacher]:
        """The slowest teachers that the others can do without, about half of them."""
        at_once = self.supply.spare(time) * _RELEASED_AT_ONCE  # nothing while it is paused
        if at_once <= 0:
            return []
        rates = {name: speed.rate for name, speed in self.ledger.teachers.items()}
        kept = {*choose(rates, self.supply.needed()), *self.roster.releasing}
        spare: list[Teacher] = []
        for name in sorted(rates.keys() - kept, key=lambda name: (rates[name], name)):
            if spare and rates[name] > at_once:
                break
            spare.append(self.roster.teachers[name])
            at_once -= rates[name]
        return spare

    # What the coordinator is told

    def _need(self) -> float:
        """Samples/s to be covered, in the rates that teachers say of themselves."""
        said = sum(t.t_t for t in self.roster.teachers.values() if not t.draining)
        seen = sum(speed.rate for speed in self.ledger.teachers.values())
        slower = min(_SLOWER, max(1.0, said / seen)) if said > 0 and seen > 0 else 1.0
        return self.supply.enough() * slower

    def _need_has_fallen(self, time: float) -> bool:
        """Others may need what was told too much; known once the student has its pace."""
        supply, much = self.supply, _LESS * self.need_told
        paced = supply.paced_at is not None and time >= supply.paced_at + supply.settle_s
        # Never less than `enough`: each look would else add up all teachers.
        less = supply.enough() < much and self._need() < much
        return paced and not supply.paused and less

    def _tell_need(self, *, asked: bool = False) -> float:
        """What is told now; with `asked`, teachers change by it."""
        self.need_told = self._need()
        if asked:
            self.need_asked = self.need_told
        return self.need_told

    def static_share(self) -> Instructions:
        """Line 1 of Algorithm 1, once, for the record."""
        teachers, t_s = self.roster.teachers.values(), self.rules.t_s
        if not teachers or self._reported_share:
            return []
        self._reported_share = True
        mean = sum(t.t_t for t in teachers) / len(teachers)
        n = static_share(t_s, mean)
        return [EmitEvent(Scheduled(t_s=t_s, t_t=mean, n=n, got=len(teachers)))]

    def pump(self, time: float) -> Instructions:
        """Lines 4 to 12, once. Whether it sends is a state of the schedule, read by `may_send`."""
        if self.supply.paused:
            return []
        told = Instructions()
        self.schedule, decided = on_volume(self.schedule, self.level())
        if "request_teacher" in decided and self.announced:  # lines 7 to 9
            self._asked = True
            self.supply.begin(time)
            need = 0.0 if self.rules.policy == "paper" else self._tell_need(asked=True)
            told.append(tell.AskTeacher(need))
        elif "request_teacher" in decided:  # line 1 comes first
            self.on_ask_failed()
        if "release_teacher" in decided:  # the paper has no release
            need = self._tell_need(asked=True)
            told += [tell.Release(t.address, t.lease, need) for t in self._spare]
            self.roster.releasing |= {t.address for t in self._spare}
            self.supply.begin(time)
        self._wants, self._spare = False, []
        return told
