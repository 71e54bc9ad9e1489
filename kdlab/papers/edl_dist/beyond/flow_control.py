"""Evidence for the guarded policy (hybrid_schedule.py): do a student's teachers suffice?

Beyond the paper, whose only evidence is the volume (Algorithm 1, line 3). A student shows its pace
while it is fed: samples trained on, over the time in which it did not wait. One more teacher is
asked for when the student waited and nothing but teachers was short. One is released when the
rates of the others stayed above the student's pace for a whole window in which it did not wait.
Teachers that come and go do not reset the evidence. Only changes that this student caused (one
that it asked for came, one was released) begin a new observation, since their effect is judged.
"""

from collections import deque
from dataclasses import dataclass, field
from math import inf
from typing import Literal, NamedTuple

_WAITED = 0.02  # share of the time that a student may wait and still count as fed
_SPARE = 1.1  # times the student's pace, which the others must reach before a release
_PEAK_WINDOWS = 6  # windows back for the student's pace: a busy machine lowers a few
_PACE_S = 5.0  # seconds back to which the current pace reaches
_KEPT = 0.5  # of the earlier evidence, at least: a single step does not decide
_BREAK_S, _BREAK_STEPS = 1.0, 10.0  # a longer gap is no step: it saves or evaluates
_ENOUGH = 1.05  # times its pace, which a student asks for, and keeps after a release
_AHEAD = 2.0  # times demand x latency: answers come unevenly
_AHEAD_BATCHES = 2  # besides: one trained on, one that is being completed
_LATENCY_NEW = 0.1  # weight of the newest answer in the mean latency
_SETTLE_LATENCIES = 3.0  # a change of teachers shows when their first answers are there
_WINDOW_LATENCIES = 10.0
_TICKS_PER_WINDOW = 20  # counts that are kept for each window

Short = Literal["nothing", "teachers", "thresholds"]


class _Count(NamedTuple):
    """Totals of a student up to a moment."""

    time: float
    trained: int
    waited_s: float
    held_s: float


@dataclass(slots=True)
class StudentPace:
    """Rate at which a student would train if it never waited (t_s of section 3.2, live)."""

    t_s: float  # samples/s it was measured at, without a teacher: 3.2, until its steps say
    batch: int  # samples of its largest batch
    trained: int = 0  # samples trained on
    last_step: float | None = None  # when the trainer was last seen to end a step
    waited_before: float = 0.0  # seconds it had waited at that time
    step_s: float = 0.0  # mean seconds between two steps, without waiting
    busy: float = 0.0  # samples of the observed steps; older ones fade
    busy_s: float = 0.0  # seconds that these steps took
    peaks: deque[float] = field(default_factory=lambda: deque(maxlen=_PEAK_WINDOWS))
    peak_at: float | None = None  # when the newest was taken

    def on_trained(self, samples: int, time: float, waited_s: float) -> None:
        """Count a step that the trainer has ended; several may be reported at once."""
        self.trained += samples
        before, self.last_step = self.last_step, time
        waited = waited_s - self.waited_before
        self.waited_before = waited_s
        if before is None:
            return
        took = max(0.0, time - before - waited)
        if self.busy_s and took > max(_BREAK_S, _BREAK_STEPS * self.step_s):
            return
        # Waiting ages the evidence too: else a student that has become quick, and starves for
        # it, would have to train for all of this time until its pace is believed.
        aged = (time - before) / max(_PACE_S, _BREAK_STEPS * self.step_s)
        remaining = max(_KEPT, 1 - aged)
        self.busy = remaining * self.busy + samples
        self.busy_s = remaining * self.busy_s + took
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
        """Samples/s that the student's steps need: the maximum of the last few windows."""
        return max([*self.peaks, self.demand])


@dataclass(slots=True)
class Starvation:
    """Seconds in which the student stood still for want of soft labels (line 7: volume == 0)."""

    waited_s: float = 0.0
    # Part of `waited_s`: one latency before, thresholds held sending back while a teacher had room.
    held_s: float = 0.0
    held_at: float = -inf  # seconds, when thresholds last did so
    since: float | None = None  # seconds, when it began to wait; None: it does not

    def count(self, time: float, latency_s: float) -> None:
        """Add the time since the last count, where the student waits."""
        if self.since is not None:
            step = time - self.since
            self.waited_s += step
            self.held_s += step if time - self.held_at <= latency_s else 0.0
            self.since = time


@dataclass(slots=True)
class FlowControl:
    pace: StudentPace
    settle_s: float = 3.0  # at least; longer where answers take long
    window_s: float = 10.0  # at least; longer where answers take long
    starved: Starvation = field(default_factory=Starvation)
    latency_s: float = 0.0  # mean seconds from sending a part to its answer
    # Latency of the slowest teacher that is needed, with as much as it may have to do.
    reach_s: float = 0.0
    capacity: float = 0.0  # samples/s of all its teachers
    # Seconds, since when its pace is known: the start is over
    paced_at: float | None = None
    ut_held_it_up: bool = False  # it waited for thresholds: Little's law may exceed ut
    window_start: float | None = None  # seconds: evidence before it is of other teachers
    history: deque[_Count] = field(default_factory=deque)  # within the window
    paused: bool = False  # it is at rest, and needs neither more teachers nor fewer

    # Events

    def on_waits(self, time: float) -> None:
        """Note that the trainer has nothing left to train on (line 7)."""
        if self.starved.since is None and not self.paused:
            self.starved.since = time

    def on_fed(self, time: float) -> None:
        """Note that the trainer has something to train on again."""
        self.starved.count(time, self.latency_s)
        self.starved.since = None

    def on_trained(self, samples: int, time: float) -> None:
        self.pace.on_trained(samples, time, self.starved.waited_s)

    def on_answer(self, seconds: float) -> None:
        """Update the mean latency by a part that was answered after `seconds`."""
        before = self.latency_s or seconds
        self.latency_s = before + _LATENCY_NEW * (seconds - before)

    def on_paused(self, paused: bool, time: float, waits: bool) -> None:
        self.on_fed(time)
        self.paused = paused
        if not paused and waits:
            self.on_waits(time)
        self.begin(time)

    def on_capacity(self, capacity: float, time: float) -> None:
        """Update the samples/s of all its teachers."""
        if capacity and not self.capacity:
            self.begin(time)  # a wait for the first teachers does not call for more
        self.capacity = capacity

    def on_tick(self, time: float, *, held: bool) -> None:
        """Let time pass; `held` is True where thresholds kept a teacher with room idle."""
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
        """Begin a new observation: this student's teachers have changed at its request."""
        self.window_start = time + self.settling_s

    # Conclusions

    @property
    def settling_s(self) -> float:
        return max(self.settle_s, _SETTLE_LATENCIES * self.latency_s)

    @property
    def window(self) -> float:
        return max(self.window_s, _WINDOW_LATENCIES * self.latency_s)

    @property
    def demand(self) -> float:
        return self.pace.demand

    @property
    def lead(self) -> int:
        """Samples to ask for ahead so that the student never waits (Little's law)."""
        ahead = _AHEAD * min(self.demand, self.capacity) * self.reach_s
        return int(ahead) + _AHEAD_BATCHES * self.pace.batch

    @property
    def credit(self) -> int:
        """Samples that may be unused or in flight so that the student never waits.

        0 until it has waited for thresholds: where ut suffices, ut is the limit.
        """
        if not self.ut_held_it_up or not self.latency_s:
            return 0
        return self.lead

    def short_of(self, time: float) -> Short:
        """Cause of the student's waiting since this observation began."""
        past = self._since(time)
        if past is None or time - past.time < self.settling_s or not self.latency_s:
            return "nothing"  # before the first batch is complete, only rates are known
        waited = self.starved.waited_s - past.waited_s
        lately = self._lately(time - self.settling_s)
        for since in (past, lately):  # a wait that is over (a start, a loss) does not count
            if self.starved.waited_s - since.waited_s <= _WAITED * (time - since.time):
                return "nothing"
        held = self.starved.held_s - past.held_s
        return "thresholds" if held > 0.5 * waited else "teachers"

    def lacks_rate(self, time: float) -> bool:
        """Return whether the student waits and its teachers' rates are below its pace."""
        if not self.pace.is_known or self.capacity >= self.demand or not self.history:
            return False
        lately = self._lately(time - self.settle_s)
        return self.starved.waited_s - lately.waited_s > _WAITED * self.settle_s

    def spare(self, time: float) -> float:
        """Samples/s of its teachers that the student does not need; 0 before a whole window."""
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
        """Samples/s to ask teachers for: just the pace would leave no margin."""
        return _ENOUGH * self.pace.used()

    def _was_held_up(self, time: float) -> bool:
        """Return whether thresholds kept it waiting, in this observation or after its start."""
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
        """The first count since `begin`, or the newest."""
        return next((c for c in self.history if c.time >= begin), self.history[-1])

    def _since(self, time: float) -> _Count | None:
        """The oldest count of this observation."""
        if self.window_start is None or time < self.window_start:
            return None
        return next((c for c in self.history if c.time >= self.window_start), None)

    def _count(self, time: float) -> _Count:
        return _Count(time, self.pace.trained, self.starved.waited_s, self.starved.held_s)
