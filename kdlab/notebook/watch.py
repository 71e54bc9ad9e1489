"""From the events of a run to what there is to see: a machine without clock or widget.

Events in, facts to draw out. The same for the live view, for the picture that stays in a
saved notebook, and for a test.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kdlab.events.blockwise import TraceRecorded
from kdlab.events.checks import CheckMade
from kdlab.events.curve import Curve, CurvePoints
from kdlab.events.ensemble import ErrorsMeasured, LocalStep
from kdlab.events.event import Event
from kdlab.events.images import ImagesAnswered, ImagesChosen
from kdlab.events.run_state import BUFFER, SPEED, RunState
from kdlab.events.runs import MemberStarted, RunStarted
from kdlab.events.teachers import (
    AllTeachersLost,
    MemoryLimits,
    Scheduled,
    TeacherJoined,
    TeacherLost,
    ThresholdLimits,
)
from kdlab.events.training import (
    CheckpointSaved,
    Continued,
    Paused,
    SettingsChanged,
    SettingsReverted,
    StepLogged,
)
from kdlab.notebook.pace import Pace
from kdlab.report.table import not_trained_on
from kdlab.report.timeline import BarRow
from kdlab.report.verdict import shown

_TICKER = 200
_MARKS = 200
# The head of the view, its curves and its cards show them.
_SEEN_OTHERWISE = (RunStarted, MemberStarted, ErrorsMeasured, CheckMade)


@dataclass(frozen=True, slots=True)
class Mark:
    """Where something happened to a training."""

    step: float
    epoch: float
    text: str
    kind: str  # "bad", "warn", "good", "set", "faint"


@dataclass
class Watch(RunState):
    """What one run has shown so far, of the member that trains now."""

    paused: bool = False
    stranded: str = ""  # no teacher is left: what to do
    held: str = ""  # what holds teachers back though the student waits
    pace: Pace = field(default_factory=Pace)
    levels: dict[tuple[str, str], CurvePoints] = field(default_factory=dict)
    marks: deque[Mark] = field(default_factory=lambda: deque(maxlen=_MARKS))
    ticker: deque[tuple[float, str]] = field(default_factory=lambda: deque(maxlen=_TICKER))
    images: ImagesChosen | None = None  # that are watched
    # Who said what of them last: "teacher", "student", and "student at first"
    answers: dict[str, ImagesAnswered] = field(default_factory=dict)
    spans: list[BarRow] = field(default_factory=list)  # what devices did, of blockwise runs
    values: dict[str, float] = field(default_factory=dict)  # that were set from outside
    settings_set: deque[Mapping[str, float]] = field(
        default_factory=lambda: deque(maxlen=_MARKS)
    )
    ruined: bool = False  # perhaps: numbers were set, and not taken back
    _news: list[tuple[str, str, float, float]] = field(default_factory=list)

    def see(self, event: Event) -> None:
        """One event of `events.jsonl`."""
        before, chapter = self.now, self.chapter
        super().see(event)
        if self.now is not before:
            self._begin_anew()
        if self.chapter != chapter:
            self._news.clear()
        if self.newest is self.now:
            self._news += self.now.new
        self._take(event)
        if not isinstance(event, _SEEN_OTHERWISE) and (line := event.text()):
            self.ticker.append((self.time, line))

    def _begin_anew(self) -> None:
        """Another training: its own curves; those of the others stay in `trainings`."""
        for of_the_other in (
            self.values,
            self.settings_set,
            self.levels,
            self.marks,
            self.spans,
        ):
            of_the_other.clear()
        self.ruined = False
        self.answers = {k: v for k, v in self.answers.items() if k == "teacher"}
        soft = (self.started.spec if self.started else {}).get("soft_labels") or {}
        served = soft.get("type") == "cluster/served" and self.now.source == "served"
        if served and soft.get("thresholds_in") == "samples":
            for name in ("lt", "ut"):
                if soft[name] is not None:
                    self._level(BUFFER, name, float(soft[name]))

    def _take(self, event: Event) -> None:
        match event:
            case RunStarted() | MemberStarted():
                self.paused, self.stranded, self.held = False, "", ""
                self.pace.forget()
            case StepLogged() if self.newest is self.now:
                self.pace.step(event.time, event.step, event.figures)
            case LocalStep() if event.worker == 0:
                self.pace.step(event.time, event.step, {})
            case Paused() | Continued():
                self.paused = isinstance(event, Paused)
                self.pace.forget()
                self._mark("paused" if self.paused else "went on", "warn")
            case ImagesChosen():
                self.images = event
            case ImagesAnswered():
                self._answered(event)
            case TraceRecorded():
                self.spans = [
                    (int(device), str(part), int(step), float(begin), float(end))
                    for device, part, step, begin, end in event.spans
                ]
            case _:
                self._take_of_teachers(event)

    def _answered(self, event: ImagesAnswered) -> None:
        if event.member == "teacher":
            self.answers["teacher"] = event
            return
        self.answers.setdefault("student at first", event)
        self.answers["student"] = event

    def _take_of_teachers(self, event: Event) -> None:
        """Who serves, and what somebody has set."""
        match event:
            # What the student does when soft labels are free (N-training); where its teachers
            # share its cores it would have those, too.
            case Scheduled() if not self.now.shares_cores:
                self._level(SPEED, "without a teacher", event.t_s)
            case SettingsChanged():
                self.values |= event.values
                self.settings_set.append(event.values)
                said = ", ".join(
                    f"{name} = {value:g}" for name, value in event.values.items()
                )
                self.ruined = not isinstance(event, SettingsReverted)
                if self.ruined:  # else it stands at a step that is undone next
                    self._mark(f"set: {said}", "set")
                for name, value in event.values.items():
                    part, _, key = name.partition(".")
                    if part == "soft_labels" and (BUFFER, key) in self.levels:
                        self._level(BUFFER, key, float(value))
            case CheckpointSaved():
                self._mark("checkpoint", "faint")
            case TeacherJoined():
                self.stranded = ""
                if self.now.step:  # those of the start are no news
                    self._mark(f"{event.name} joined", "good")
            case TeacherLost():
                self._mark(f"{event.teacher} is lost: {event.why}", "bad")
            case AllTeachersLost():
                self.stranded = event.text()
                self._mark("no teacher is left", "bad")
            case ThresholdLimits() | MemoryLimits():
                self.held = event.text()

    def _level(self, panel: str, name: str, value: float) -> None:
        """From here on: what was drawn before stays as it was."""
        step = self.now.at[0]
        before = [point for point in self.levels.get((panel, name), []) if point[0] <= step]
        self.levels[panel, name] = [*before, (step, value)]

    def _mark(self, text: str, kind: str) -> None:
        self.marks.append(Mark(*self.now.at, text, kind))

    def take_news(self) -> list[tuple[str, str, float, float]]:
        """CurvePoints since the last call: (panel, curve, x, y)."""
        found, self._news = self._news, []
        return found

    @property
    def chapter(self) -> tuple[str, int]:
        """Another one when all curves begin anew, or lose what was undone."""
        return self.now.member, self.now.undone

    @property
    def curves(self) -> dict[tuple[str, str], Curve]:
        """Curves of the member that trains now, by panel and name."""
        return self.now.curves

    @property
    def lost(self) -> str:
        """Samples that it was not trained on, when it has ended."""
        return not_trained_on(self.result.get("runs") or [])

    @property
    def verdict(self) -> tuple[str, str]:
        """Tone and words on its teacher, when it has ended."""
        return shown(self.result.get("verdict"))

    @property
    def result(self) -> Mapping[str, Any]:
        """What it came to; empty before."""
        return (self.done.result if self.done else None) or {}

    def seconds_left(self) -> float | None:
        """Until the member that trains now is done; None while its pace is not known."""
        if self.state != "running" or self.paused or not self.now.of_steps:
            return None
        return self.pace.seconds_for(self.now.of_steps - self.now.step)
