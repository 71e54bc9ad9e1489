"""The monitoring task of Algorithm 1 (section 3.2, line 3), and what it asks of the coordinator.

hybrid_schedule.py decides; this module counts the volume and, for the guarded policy, watches
whether the teachers suffice (beyond/flow_control.py). Reporting the student's need to the
coordinator is beyond the paper, which measures a student once, by itself. That measurement may be
wrong by a quarter, and where several students share a pool that is too small, one student waits
for what another holds and does not need.
"""

from dataclasses import replace

from kdlab.events.teachers import MemoryLimits, Scheduled, ThresholdLimits
from kdlab.papers.edl_dist.assignment import choose, static_share
from kdlab.papers.edl_dist.batches import Batches
from kdlab.papers.edl_dist.beyond.flow_control import FlowControl, Short, StudentPace
from kdlab.papers.edl_dist.hybrid_schedule import BufferState, Schedule, on_volume
from kdlab.papers.edl_dist.in_flight import InFlight
from kdlab.papers.edl_dist.reader_instructions import (
    AskTeacher,
    EmitEvent,
    Instructions,
    Need,
    Release,
)
from kdlab.papers.edl_dist.reader_rules import Rules, Teacher
from kdlab.papers.edl_dist.roster import Roster
from kdlab.papers.edl_dist.stability import Stability

_REPORT_AGAIN_S = 60.0  # between two notices of thresholds that hold the student up
_RELEASED_AT_ONCE = 0.5  # of the spare rate: the rest after the next observation
_MORE = 1.05  # times the need that was asked for: beyond it, the student asks again
_LESS = 0.9  # times the need that was reported: below it, the student reports again
_SLOWER = 4.0  # at most, than they state: one that hangs is replaced by those that answer


class Flow:
    def __init__(
        self, rules: Rules, batch: int, ledger: InFlight, batches: Batches, roster: Roster
    ) -> None:
        """Start the flow of a student whose largest batch has `batch` samples."""
        self.rules, self.ledger, self.batches, self.roster = rules, ledger, batches, roster
        most, policy = rules.max_in_flight, rules.policy
        self.schedule = Schedule(
            lt=rules.lt, ut=rules.ut, batch=batch, max_in_flight=most, policy=policy
        )
        self.supply = FlowControl(
            StudentPace(rules.t_s, batch), rules.settle_s, rules.window_s
        )
        self.stability = Stability()
        # Soft labels that arrived and were not trained on: the volume of line 3
        self.unused = 0
        self.volume_max = 0  # the most that were unused at once
        self.room_max = rules.ut  # the most that was allowed to be unused or in flight
        self.announced = False  # the coordinator knows this student's demand
        # Samples/s that the coordinator works with: line 1's t_s
        self.need_reported = rules.t_s
        self.need_asked = 0.0  # samples/s, when teachers were asked for or released last
        self._asked = False  # line 8 is under way: the teacher has not come yet
        self._wants = False  # at the last tick: the student starved for want of teachers
        # At the last tick: those that the others can replace
        self._spare: list[Teacher] = []
        self._limit_reported_at = float("-inf")  # seconds, of the last notice of limits
        self._reported_share = False

    # Events

    def on_announced(self) -> None:
        self.announced, self.need_reported = True, self.rules.t_s

    def on_joined(self, time: float) -> None:
        """Start a new observation where the teacher was asked for: its effect is to be seen."""
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
        """Let time pass; `waits` is True where the trainer has nothing to train on."""
        rates = [speed.rate for speed in self.ledger.teachers.values()]
        self.supply.on_capacity(sum(rates), time)
        if waits:
            self.supply.on_waits(time)
        self.supply.on_tick(time, held=self._thresholds_hold())
        # Formula 2 (journal): S(t) is what is stored, I(t) the number of teachers
        self.stability.on_tick(time, self.unused * self.rules.sample_mb, len(rates))

    # State

    def level(self) -> BufferState:
        """State of the buffer (line 3: volume = get_volume(unused soft labels))."""
        supply = self.supply
        return BufferState(
            unused=self.unused,
            # Not in the paper's volume: only `guarded` reads it
            in_flight=self.ledger.samples,
            lead=0 if self.schedule.sending else supply.lead,  # read where it may begin to
            credit=supply.credit,
            wants_teacher=self._wants,
            spares_teacher=bool(self._spare),
        )

    def may_send(self, samples: int) -> bool:
        return self.schedule.may_send(self.level(), samples)

    def has_room(self, samples: int) -> bool:
        """Return whether labels that need no teacher fit below the threshold."""
        ahead = self.unused + self.ledger.samples
        return ahead + samples <= self.schedule.room(self.level())

    def _thresholds_hold(self) -> bool:
        """Return whether the thresholds keep a teacher idle although there is work."""
        full_batch = self.batches.next
        if full_batch is None or self.ledger.waiting or self.batches.open:
            return False
        return not self.may_send(full_batch.size) and self.ledger.stands_idle()

    def update(self, time: float) -> Instructions:
        """Judge whether the teachers suffice: `pump` reads the result (lines 7 to 9)."""
        short = self.supply.short_of(time)
        instructions = self._limits(short, time)
        self.room_max = max(self.room_max, self.schedule.room(self.level()))
        # Line 7 asks at volume == 0. `guarded` asks once the student has starved for want of
        # teachers, or when more rate is missing than was asked for.
        lacks = self.supply.lacks_rate(time) and self._need() > _MORE * self.need_asked
        self._wants = (lacks or short == "teachers") and not self.supply.paused
        guards = self.announced and self.rules.policy == "guarded"
        if guards and self._need_has_fallen(time):
            instructions.append(Need(self._report_need()))
        self._spare = self._not_needed(time)
        return instructions

    def _limits(self, short: Short, time: float) -> Instructions:
        """Report that the user's limit keeps the student waiting, with a limit that would do."""
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
        """The slowest teachers that can be released now: about half of the spare rate."""
        # Algorithm 1 has no release: teachers are only added, though Formula 2 wants I(t) small.
        at_once = self.supply.spare(time) * _RELEASED_AT_ONCE  # nothing while it is paused
        if at_once <= 0:
            return []
        rates = {name: speed.rate for name, speed in self.ledger.teachers.items()}
        needed = {*choose(rates, self.supply.needed()), *self.roster.releasing}
        spare: list[Teacher] = []
        for name in sorted(rates.keys() - needed, key=lambda name: (rates[name], name)):
            if spare and rates[name] > at_once:
                break
            spare.append(self.roster.teachers[name])
            at_once -= rates[name]
        return spare

    # The need

    def _need(self) -> float:
        """Samples/s to be covered, in the rates that teachers state."""
        stated = sum(t.t_t for t in self.roster.teachers.values() if not t.draining)
        seen = sum(speed.rate for speed in self.ledger.teachers.values())
        slower = min(_SLOWER, max(1.0, stated / seen)) if stated > 0 and seen > 0 else 1.0
        return self.supply.enough() * slower

    def _need_has_fallen(self, time: float) -> bool:
        """Return whether too much was reported, once the student's pace is known."""
        supply, much = self.supply, _LESS * self.need_reported
        paced = supply.paced_at is not None and time >= supply.paced_at + supply.settle_s
        # Never less than `enough`: else each tick would add up all teachers.
        less = supply.enough() < much and self._need() < much
        return paced and not supply.paused and less

    def _report_need(self, *, asked: bool = False) -> float:
        """Samples/s to report now; with `asked`, teachers change by it."""
        self.need_reported = self._need()
        if asked:
            self.need_asked = self.need_reported
        return self.need_reported

    def static_share(self) -> Instructions:
        """Report n of Algorithm 1, line 1, once, for the record."""
        teachers, t_s = self.roster.teachers.values(), self.rules.t_s
        if not teachers or self._reported_share:
            return []
        self._reported_share = True
        mean = sum(t.t_t for t in teachers) / len(teachers)
        # 3.2: n = t_s / t_t. The paper's teachers are alike; mean
        n = static_share(t_s, mean)
        return [EmitEvent(Scheduled(t_s=t_s, t_t=mean, n=n, got=len(teachers)))]

    def pump(self, time: float) -> Instructions:
        """Run lines 4 to 12 once; `may_send` reads from the schedule whether to send."""
        if self.supply.paused:
            return []
        instructions = Instructions()
        self.schedule, decided = on_volume(self.schedule, self.level())
        if "request_teacher" in decided and self.announced:  # lines 7 to 9
            self._asked = True
            self.supply.begin(time)
            # Line 8 schedules "an additional" one; `guarded` says how much is missing.
            need = 0.0 if self.rules.policy == "paper" else self._report_need(asked=True)
            instructions.append(AskTeacher(need))
        elif "request_teacher" in decided:  # line 1 comes first
            self.on_ask_failed()
        if "release_teacher" in decided:  # beyond the paper, which has no release
            need = self._report_need(asked=True)
            instructions += [Release(t.address, t.lease, need) for t in self._spare]
            self.roster.releasing |= {t.address for t in self._spare}
            self.supply.begin(time)
        self._wants, self._spare = False, []
        return instructions
