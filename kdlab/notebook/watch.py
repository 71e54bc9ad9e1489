"""From the events of a run to what there is to see: a machine without clock or widget.

Events in, facts to draw out. The same for the live monitor, for the picture that stays in a
saved notebook, and for a test.
"""

from collections import deque
from dataclasses import dataclass, field

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

    def _take(self, event: Event) -> None:
        match event:
            case StepLogged() | EpochDone() if event.member == "teacher" and self.member:
                pass  # curves are of the student
            case MemberStarted():
                self._begin(str(event.member))
            case RunStarted():
                self._begin_session(event)
            case StepLogged():
                self.step, self.of_steps, self.epoch = (
                    event.step,
                    event.of_steps,
                    event.epoch,
                )
                self.rate = event.samples_per_second
                self._points(_STEP, event, self.step)
            case LocalStep():
                self.step, self.of_steps = event.step, event.of_steps
                if event.loss is not None:
                    self._point("loss", f"worker {event.worker}", self.step, event.loss)
            case EpochDone():
                self._points(_EPOCH, event, event.epoch)
            case ErrorsMeasured():
                self._points(_LOOK, event, event.iterations)
            case Paused() | WentOn():
                self.paused = isinstance(event, Paused)
            case RunDone():
                self.state = event.state
            case _:
                self._take_of_machines(event)

    def _take_of_machines(self, event: Event) -> None:
        """Teachers, devices, and what somebody has set."""
        match event:
            case Scheduled():  # what the student does when soft labels are free (N-training)
                self.lines["samples/s"] = {"t_s": event.t_s}
            case Steered():
                self.values |= event.values
                for name, value in event.values.items():
                    part, _, key = name.partition(".")
                    if part == "soft_labels" and "unused soft labels" in self.lines:
                        self.lines["unused soft labels"][key] = float(value)
            case TraceRecorded():
                self.spans = [
                    (int(device), str(part), int(step), float(begin), float(end))
                    for device, part, step, begin, end in event.spans
                ]
            case TeacherJoined(name=name, device=device, t_t=t_t):
                before = self.teachers.get(name)
                resends = 0 if before is None else before.resends
                row = TeacherRow(name, "assigned", str(device), t_t, resends, self.time)
                self.teachers[name] = row
            case TeacherLeft() | TeacherLost() if event.teacher in self.teachers:
                row = self.teachers[event.teacher]
                row.state = "left" if isinstance(event, TeacherLeft) else "lost"
                row.since = self.time
                row.resends += event.resent

    def _begin(self, member: str) -> None:
        """Another member: its own curves; what came of the others stays."""
        self.member, self.paused = member, False
        self.chapter += 1
        self.values.clear()
        self.curves.clear()
        self.teachers.clear()
        self.news.clear()
        self.spans = []
        self.lines.pop("samples/s", None)
        self.step = self.of_steps = self.epoch = 0

    def _begin_session(self, event: RunStarted) -> None:
        self.state, self.paused, self.experiment = "running", False, event.experiment
        soft = (event.spec or {}).get("soft_labels") or {}
        if soft.get("type") == "cluster/served" and soft.get("thresholds_in") == "samples":
            bounds = {name: soft[name] for name in ("lt", "ut") if soft[name] is not None}
            self.lines["unused soft labels"] = bounds

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
