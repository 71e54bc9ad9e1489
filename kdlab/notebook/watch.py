"""From the events of a run to what there is to see: a machine without clock or widget.

Events in, facts to draw out. The same for the live monitor, for the picture that stays in a
saved notebook, and for a test.
"""

from collections import deque
from dataclasses import dataclass, field
from functools import singledispatchmethod

from kdlab.events.blockwise import TraceRecorded
from kdlab.events.ensemble import ErrorsMeasured, LocalStep
from kdlab.events.event import Event
from kdlab.events.runs import MemberStarted, RunDone, RunStarted
from kdlab.events.teachers import Scheduled, TeacherJoined, TeacherLeft, TeacherLost
from kdlab.events.training import EpochDone, Paused, Steered, StepLogged, WentOn
from kdlab.notebook.curve import Curve
from kdlab.report.timeline import Row

# Panel, curve, key of a `step` event. Panels are drawn in this order, one above the other.
_STEP = (
    ("loss", "loss", "loss"),
    ("samples/s", "student", "samples_per_second"),
    ("unused soft labels", "volume", "volume"),
)
_EPOCH = (("top-1 on validation, %", "student", "validation_top1"),)
_LOOK = (
    ("test error, %", "local (_L)", "chosen"),
    ("test error, %", "global (_G)", "global_"),
)
_TICKER = 200
# The head of the monitor and its curves show them.
_SEEN_OTHERWISE = (RunStarted, MemberStarted, ErrorsMeasured)


@dataclass(slots=True)
class TeacherRow:
    name: str
    state: str  # "assigned", "left", "lost"
    device: str = ""
    t_t: float = 0.0  # samples/s
    resends: int = 0
    since: float = 0.0


@dataclass(slots=True)
class Watch:
    """What one run has shown so far, of the member that trains now."""

    state: str = "starting"
    member: str = ""
    experiment: str = ""
    began: float = 0.0
    time: float = 0.0  # of the newest event
    step: int = 0
    of_steps: int = 0
    epoch: int = 0
    rate: float = 0.0
    paused: bool = False
    lines: dict[str, dict[str, float]] = field(default_factory=dict)  # by panel and name
    curves: dict[tuple[str, str], Curve] = field(default_factory=dict)
    teachers: dict[str, TeacherRow] = field(default_factory=dict)
    ticker: deque[tuple[float, str]] = field(default_factory=lambda: deque(maxlen=_TICKER))
    news: list[tuple[str, str, float, float]] = field(default_factory=list)
    spans: list[Row] = field(default_factory=list)  # what devices did, of blockwise runs
    values: dict[str, float] = field(default_factory=dict)  # that were set from outside
    chapter: int = 0  # grows when all curves begin anew

    def see(self, event: Event) -> None:
        """One event of `events.jsonl`."""
        self.time = event.time
        self._take(event)
        if not isinstance(event, _SEEN_OTHERWISE) and (line := event.text()):
            self.ticker.append((self.time, line))

    @singledispatchmethod
    def _take(self, event: Event) -> None:
        """What it changes; by its class."""

    @_take.register
    def _on_member_started(self, event: MemberStarted) -> None:
        """Its own curves; what came of the others stays."""
        self.member, self.paused = str(event.member), False
        self.chapter += 1
        self.values.clear()
        self.curves.clear()
        self.teachers.clear()
        self.news.clear()
        self.spans = []
        self.lines.pop("samples/s", None)
        self.step = self.of_steps = self.epoch = 0

    @_take.register
    def _on_run_started(self, event: RunStarted) -> None:
        self.state, self.began = "running", self.began or self.time
        self.paused = False
        self.experiment = event.experiment
        spec = event.spec or {}
        soft = spec.get("soft_labels") or {}
        if soft.get("type") == "cluster/served" and soft.get("thresholds_in") == "samples":
            bounds = {name: soft[name] for name in ("lt", "ut") if soft[name] is not None}
            self.lines["unused soft labels"] = bounds

    @_take.register
    def _on_step(self, event: StepLogged) -> None:
        if event.member == "teacher" and self.member:
            return
        self.step, self.of_steps = event.step, event.of_steps
        self.epoch = event.epoch
        self.rate = event.samples_per_second
        self._points(_STEP, event, self.step)

    @_take.register
    def _on_local_step(self, event: LocalStep) -> None:
        self.step, self.of_steps = event.step, event.of_steps
        if event.loss is not None:
            name = f"worker {event['worker']}"
            self._point("loss", name, self.step, event.loss)

    @_take.register
    def _on_epoch_done(self, event: EpochDone) -> None:
        if event.member == "teacher" and self.member:
            return
        self._points(_EPOCH, event, event.epoch)

    @_take.register
    def _on_tick(self, event: ErrorsMeasured) -> None:
        self._points(_LOOK, event, event.iterations)

    @_take.register
    def _on_scheduled(self, event: Scheduled) -> None:
        """t_s: what the student does when soft labels are free (N-training)."""
        self.lines["samples/s"] = {"t_s": event.t_s}

    @_take.register
    def _on_steered(self, event: Steered) -> None:
        self.values |= event.values
        for name, value in event.values.items():
            part, _, key = name.partition(".")
            if part == "soft_labels" and "unused soft labels" in self.lines:
                self.lines["unused soft labels"][key] = float(value)

    @_take.register
    def _on_trace(self, event: TraceRecorded) -> None:
        self.spans = [
            (int(device), str(part), int(step), float(begin), float(end))
            for device, part, step, begin, end in event.spans
        ]

    @_take.register
    def _on_paused(self, event: Paused | WentOn) -> None:
        self.paused = isinstance(event, Paused)

    @_take.register
    def _on_teacher_joined(self, event: TeacherJoined) -> None:
        device = str(event.device)
        row = TeacherRow(event.name, "assigned", device, event.t_t, since=self.time)
        before = self.teachers.get(row.name)
        if before is not None:
            row.resends = before.resends
        self.teachers[row.name] = row

    @_take.register
    def _on_teacher_gone(self, event: TeacherLeft | TeacherLost) -> None:
        row = self.teachers.get(event.teacher)
        if row is not None:
            row.state = "left" if isinstance(event, TeacherLeft) else "lost"
            row.since = self.time
            row.resends += event.resent

    @_take.register
    def _on_run_done(self, event: RunDone) -> None:
        self.state = event.state

    def _points(
        self, what: tuple[tuple[str, str, str], ...], event: Event, x: float
    ) -> None:
        facts = event.facts()
        for panel, name, key in what:
            value = facts.get(key)
            if value is not None:
                self._point(panel, name, x, float(value))

    def _point(self, panel: str, name: str, x: float, y: float) -> None:
        self.curves.setdefault((panel, name), Curve()).add(x, y)
        self.news.append((panel, name, x, y))

    def take_news(self) -> list[tuple[str, str, float, float]]:
        """Points since the last call: (panel, curve, x, y)."""
        found, self.news = self.news, []
        return found

    @property
    def panels(self) -> list[str]:
        """In the order they are drawn; only those that have a curve."""
        order = [panel for panel, *_ in (*_STEP, *_EPOCH, *_LOOK)]
        present = {panel for panel, _ in self.curves}
        return [panel for panel in dict.fromkeys(order) if panel in present]
