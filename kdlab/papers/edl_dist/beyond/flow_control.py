"""Whether a student's teachers suffice: what it trains on, how often it waits, for what.

The evidence behind the guarded policy (hybrid_schedule.py). The student's own pace shows while it
is fed: samples trained on, over the time it did not wait. Teachers are held by their rates: one
more is asked for when the student waited although nothing but teachers was short; one is released
when the others' rates stayed above what the student uses for a whole window in which it did not
wait. Teachers that come and go do not reset what was seen: only this student's own changes (a
teacher asked for came, one was released) begin a new look, since their effect is to be judged.
"""

from collections import deque
from dataclasses import dataclass, field
from math import inf
from typing import Literal, NamedTuple

_WAITED = 0.02  # share of the time a student may wait and still count as fed
_SPARE = 1.1  # the others must do so much more than the student uses
_PEAK_WINDOWS = 6  # looks back for the student's pace: a busy machine lowers a few
_PACE_S = 5.0  # so far back the pace of now reaches
_KEPT = 0.5  # of what was seen of its pace, at least: no single step says all
_BREAK_S, _BREAK_STEPS = 1.0, 10.0  # a longer gap is no step: it saves or evaluates
_ENOUGH = 1.05  # of what it uses, a student asks for, and keeps after a release
_AHEAD = 2.0  # times demand x latency: answers come unevenly
_AHEAD_BATCHES = 2  # besides: one trained on, one that is being completed
_LATENCY_NEW = 0.1  # weight of the newest batch in the mean time to its soft labels
_SETTLE_LATENCIES = 3.0  # a change of teachers shows when their first answers are there
_WINDOW_LATENCIES = 10.0
_TICKS_PER_WINDOW = 20  # at so many moments what was counted so far is kept

Short = Literal["nothing", "teachers", "thresholds"]


class _Count(NamedTuple):
    """Everything so far, at a moment."""

    time: float
    trained: int
    waited_s: float
    held_s: float


@dataclass(slots=True)
class StudentPace:
    """What the student's steps use, if it never waited."""

    t_s: float  # samples/s it was measured at, without a teacher: 3.2, until its steps say
    batch: int  # samples of its largest batch
    trained: int = 0  # samples trained on
    last_step: float | None = None  # when the trainer was last seen to end a step
    waited_before: float = 0.0  # seconds it had waited at that time
    step_s: float = 0.0  # between two steps without waiting, the mean
    busy: float = 0.0  # samples of the steps seen, forgetting
    busy_s: float = 0.0  # seconds they took
    peaks: deque[float] = field(default_factory=lambda: deque(maxlen=_PEAK_WINDOWS))
    peak_at: float | None = None  # when the newest was taken

    def on_trained(self, samples: int, time: float, waited_s: float) -> None:
        """The trainer has ended a step; several may be seen at once."""
        self.trained += samples
        before, self.last_step = self.last_step, time
        waited = waited_s - self.waited_before
        self.waited_before = waited_s
        if before is None:
            return
        took = max(0.0, time - before - waited)
        if self.busy_s and took > max(_BREAK_S, _BREAK_STEPS * self.step_s):
            return
        # Waiting makes the past older too: a student that has become quick, and starves for it,
        # would else have to train for so long until its pace is believed.
        aged = (time - before) / max(_PACE_S, _BREAK_STEPS * self.step_s)
        kept = max(_KEPT, 1 - aged)
        self.busy = kept * self.busy + samples
        self.busy_s = kept * self.busy_s + took
        self.step_s = self.busy_s * samples / self.busy

    def on_tick(self, time: float, window: float) -> None:
        if self.peak_at is None or time - self.peak_at >= window:
            self.peaks.append(self.demand if self.is_known else 0.0)
            self.peak_at = time

    @property
    def is_known(self) -> bool:
        return self.busy_s > 0 and self.trained >= 3 * self.batch

    @property
    def demand(self) -> float:
        """Samples/s the student would train on if it never waited."""
        return self.busy / self.busy_s if self.is_known else self.t_s

    def used(self) -> float:
        """Samples/s the student's steps need, the most of the last few windows."""
        return max([*self.peaks, self.demand])


@dataclass(slots=True)
class Starvation:
    """How long the student stood still for want of soft labels (line 7: volume == 0)."""

    waited_s: float = 0.0
    # Of that: for what sending was held back, while a teacher had room, one latency before.
    held_s: float = 0.0
    held_at: float = -inf  # when that was last so
    since: float | None = None  # it waits

    def count(self, time: float, latency_s: float) -> None:
        """It waits, or waited until now."""
        if self.since is not None:
            step = time - self.since
            self.waited_s += step
            self.held_s += step if time - self.held_at <= latency_s else 0.0
            self.since = time


@dataclass(slots=True)
class FlowControl:
    pace: StudentPace
    settle_s: float = 3.0  # at least; longer where answers take long
    window_s: float = 10.0
    starved: Starvation = field(default_factory=Starvation)
    latency_s: float = 0.0  # from a part that is sent to its answer, the mean
    # The same of the slowest teacher that is needed, with as much as it may have to do.
    reach_s: float = 0.0
    capacity: float = 0.0  # samples/s of its teachers together
    paced_at: float | None = None  # its pace is known since: waiting is not the start's
    ut_held_it_up: bool = False  # it waited for thresholds: Little's law may pass ut
    window_start: float | None = None  # what was before belongs to other teachers
    history: deque[_Count] = field(default_factory=deque)  # within the window
    paused: bool = False  # it stands still, and needs neither more teachers nor fewer

    # Facts

    def on_waits(self, time: float) -> None:
        """The trainer has nothing left to train on."""
        if self.starved.since is None and not self.paused:
            self.starved.since = time

    def on_fed(self, time: float) -> None:
        """It has something again."""
        self.starved.count(time, self.latency_s)
        self.starved.since = None

    def on_trained(self, samples: int, time: float) -> None:
        self.pace.on_trained(samples, time, self.starved.waited_s)

    def on_answer(self, seconds: float) -> None:
        """A part was answered, so long after it was sent."""
        before = self.latency_s or seconds
        self.latency_s = before + _LATENCY_NEW * (seconds - before)

    def on_paused(self, paused: bool, time: float, waits: bool) -> None:
        self.on_fed(time)
        self.paused = paused
        if not paused and waits:
            self.on_waits(time)
        self.begin(time)

    def on_capacity(self, capacity: float, time: float) -> None:
        """Its teachers together do so many samples/s."""
        if capacity and not self.capacity:
            self.begin(time)  # that it waited for the first ones does not call for more
        self.capacity = capacity

    def on_tick(self, time: float, *, held: bool) -> None:
        """Time passes; `held`: a teacher had room and thresholds kept it idle."""
        if self.window_start is None:
            self.begin(time)
        if held:
            self.starved.held_at = time
        self.starved.count(time, self.latency_s)
        if self.paced_at is None and self.pace.is_known and self.latency_s:
            self.paced_at = time
        gap = self.window / _TICKS_PER_WINDOW
        if not self.history or time - self.history[-1].time >= gap:
            self.history.append(self._count(time))
        while len(self.history) > 1 and self.history[1].time <= time - self.window:
            self.history.popleft()
        if not self.ut_held_it_up and self._was_held_up(time):
            self.ut_held_it_up = True
            self.begin(time)
        self.pace.on_tick(time, self.window)

    def begin(self, time: float) -> None:
        """This student's teachers are others by its own wish: look afresh."""
        self.window_start = time + self.settle

    # What follows

    @property
    def settle(self) -> float:
        return max(self.settle_s, _SETTLE_LATENCIES * self.latency_s)

    @property
    def window(self) -> float:
        return max(self.window_s, _WINDOW_LATENCIES * self.latency_s)

    @property
    def demand(self) -> float:
        return self.pace.demand

    @property
    def lead(self) -> int:
        """Samples to ask for ahead, so that the student never waits (Little's law)."""
        ahead = _AHEAD * min(self.demand, self.capacity) * self.reach_s
        return int(ahead) + _AHEAD_BATCHES * self.pace.batch

    @property
    def credit(self) -> int:
        """Samples that may be unused or in flight so that the student never waits.

        0 until it has waited for thresholds: where ut suffices, ut holds.
        """
        if not self.ut_held_it_up or not self.latency_s:
            return 0
        return self.lead

    def short_of(self, time: float) -> Short:
        """What the student waited for since the last look of its own began."""
        past = self._since(time)
        if past is None or time - past.time < self.settle or not self.latency_s:
            return "nothing"  # before the first batch is there, rates are all there is
        waited = self.starved.waited_s - past.waited_s
        lately = self._lately(time - self.settle)
        for since in (past, lately):  # what is over, a start or a loss, is no reason
            if self.starved.waited_s - since.waited_s <= _WAITED * (time - since.time):
                return "nothing"
        held = self.starved.held_s - past.held_s
        return "thresholds" if held > 0.5 * waited else "teachers"

    def lacks_rate(self, time: float) -> bool:
        """The student waits, and its teachers together do less than it uses."""
        if not self.pace.is_known or self.capacity >= self.demand or not self.history:
            return False
        lately = self._lately(time - self.settle_s)
        return self.starved.waited_s - lately.waited_s > _WAITED * self.settle_s

    def spare(self, time: float) -> float:
        """Samples/s of its teachers that the student does not need, after a whole window."""
        past = self._since(time)
        if past is None or time - past.time < self.window * (1 - 1 / _TICKS_PER_WINDOW):
            return 0.0
        idle = self.pace.trained == past.trained  # it saves or evaluates: no evidence
        waited = self.starved.waited_s - past.waited_s > _WAITED * (time - past.time)
        if idle or waited or self.paused or not self.pace.is_known:
            return 0.0
        return max(0.0, self.capacity - self.needed())

    def needed(self) -> float:
        """Samples/s that must remain after a release."""
        return _SPARE * self.pace.used()

    def enough(self) -> float:
        """Samples/s that teachers must cover, once rates alone turned out too exact."""
        return _ENOUGH * self.pace.used()

    def _was_held_up(self, time: float) -> bool:
        """Thresholds kept it waiting, in its look or in its window and not by its start."""
        if self.short_of(time) == "thresholds":
            return True
        paced = self.paced_at
        past = next(
            (c for c in self.history if paced is not None and c.time >= paced), None
        )
        return (
            past is not None and self.starved.held_s - past.held_s > _WAITED * self.window
        )

    def _lately(self, begin: float) -> _Count:
        """The first count since then, or the newest."""
        return next((c for c in self.history if c.time >= begin), self.history[-1])

    def _since(self, time: float) -> _Count | None:
        """The oldest count of this look."""
        if self.window_start is None or time < self.window_start:
            return None
        return next((c for c in self.history if c.time >= self.window_start), None)

    def _count(self, time: float) -> _Count:
        return _Count(time, self.pace.trained, self.starved.waited_s, self.starved.held_s)
