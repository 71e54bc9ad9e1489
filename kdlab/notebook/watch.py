"""Data of a run's views, from its events alone: no clock, no widget.

The live view, the snapshot in a saved notebook and tests share it.
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
# Shown by the view's head, curves and cards.
_SHOWN_ELSEWHERE = (RunStarted, MemberStarted, ErrorsMeasured, CheckMade)


@dataclass(frozen=True, slots=True)
class Mark:
    """A mark on the curves: something happened to a training."""

    step: float
    epoch: float
    text: str
    kind: str  # "bad", "warn", "good", "set", "faint"


@dataclass
class Watch(RunState):
    """State of a run so far, for the member that trains now."""

    paused: bool = False
    stranded: str = ""  # message while no teacher is left
    held: str = ""  # message on limits that hold teachers back while the student waits
    pace: Pace = field(default_factory=Pace)
    levels: dict[tuple[str, str], CurvePoints] = field(default_factory=dict)
    marks: deque[Mark] = field(default_factory=lambda: deque(maxlen=_MARKS))
    ticker: deque[tuple[float, str]] = field(default_factory=lambda: deque(maxlen=_TICKER))
    images: ImagesChosen | None = None  # the watched images
    # Newest predictions by "teacher", "student" and "student at first"
    answers: dict[str, ImagesAnswered] = field(default_factory=dict)
    spans: list[BarRow] = field(default_factory=list)  # device timelines of blockwise runs
    values: dict[str, float] = field(default_factory=dict)  # set by users
    settings_set: deque[Mapping[str, float]] = field(
        default_factory=lambda: deque(maxlen=_MARKS)
    )
    ruined: bool = False  # possibly: values were set and not reverted
    _news: list[tuple[str, str, float, float]] = field(default_factory=list)

    def apply(self, event: Event) -> None:
        """Update by an event of `events.jsonl`."""
        before, chapter = self.now, self.chapter
        super().apply(event)
        if self.now is not before:
            self._start_member()
        if self.chapter != chapter:
            self._news.clear()
        if self.newest is self.now:
            self._news += self.now.new
        self._on_event(event)
        if not isinstance(event, _SHOWN_ELSEWHERE) and (line := event.text()):
            self.ticker.append((self.time, line))

    def _start_member(self) -> None:
        """Start another member with empty curves; earlier ones stay in `trainings`."""
        for collection in (
            self.values,
            self.settings_set,
            self.levels,
            self.marks,
            self.spans,
        ):
            collection.clear()
        self.ruined = False
        self.answers = {k: v for k, v in self.answers.items() if k == "teacher"}
        soft = (self.started.spec if self.started else {}).get("soft_labels") or {}
        served = soft.get("type") == "cluster/served" and self.now.source == "served"
        if served and soft.get("thresholds_in") == "samples":
            for name in ("lt", "ut"):
                if soft[name] is not None:
                    self._level(BUFFER, name, float(soft[name]))

    def _on_event(self, event: Event) -> None:
        match event:
            case RunStarted() | MemberStarted():
                self.paused, self.stranded, self.held = False, "", ""
                self.pace.reset()
            case StepLogged() if self.newest is self.now:
                self.pace.step(event.time, event.step, event.figures)
            case LocalStep() if event.worker == 0:
                self.pace.step(event.time, event.step, {})
            case Paused() | Continued():
                self.paused = isinstance(event, Paused)
                self.pace.reset()
                self._mark("paused" if self.paused else "continued", "warn")
            case ImagesChosen():
                self.images = event
            case ImagesAnswered():
                self._record_answer(event)
            case TraceRecorded():
                self.spans = [
                    (int(device), str(part), int(step), float(begin), float(end))
                    for device, part, step, begin, end in event.spans
                ]
            case _:
                self._on_teacher_event(event)

    def _record_answer(self, event: ImagesAnswered) -> None:
        if event.member == "teacher":
            self.answers["teacher"] = event
            return
        self.answers.setdefault("student at first", event)
        self.answers["student"] = event

    def _on_teacher_event(self, event: Event) -> None:
        """Update by events on teachers and settings."""
        match event:
            # The student's rate with free soft labels (N-training); unknown where its teachers
            # share its cores.
            case Scheduled() if not self.now.shares_cores:
                self._level(SPEED, "without a teacher", event.t_s)
            case SettingsChanged():
                self.values |= event.values
                self.settings_set.append(event.values)
                changes = ", ".join(
                    f"{name} = {value:g}" for name, value in event.values.items()
                )
                self.ruined = not isinstance(event, SettingsReverted)
                if self.ruined:  # a revert's step is undone next
                    self._mark(f"set: {changes}", "set")
                for name, value in event.values.items():
                    part, _, key = name.partition(".")
                    if part == "soft_labels" and (BUFFER, key) in self.levels:
                        self._level(BUFFER, key, float(value))
            case CheckpointSaved():
                self._mark("checkpoint", "faint")
            case TeacherJoined():
                self.stranded = ""
                if self.now.step:  # not those of the start
                    self._mark(f"{event.name} joined", "good")
            case TeacherLost():
                self._mark(f"{event.teacher} is lost: {event.why}", "bad")
            case AllTeachersLost():
                self.stranded = event.text()
                self._mark("no teacher is left", "bad")
            case ThresholdLimits() | MemoryLimits():
                self.held = event.text()

    def _level(self, panel: str, name: str, value: float) -> None:
        """Set a level from this step on; earlier points stay."""
        step = self.now.at[0]
        before = [point for point in self.levels.get((panel, name), []) if point[0] <= step]
        self.levels[panel, name] = [*before, (step, value)]

    def _mark(self, text: str, kind: str) -> None:
        self.marks.append(Mark(*self.now.at, text, kind))

    def take_news(self) -> list[tuple[str, str, float, float]]:
        """Return points since the last call: (panel, curve, x, y)."""
        news, self._news = self._news, []
        return news

    @property
    def chapter(self) -> tuple[str, int]:
        """Key that changes when all curves restart, or lose undone points."""
        return self.now.member, self.now.undone

    @property
    def curves(self) -> dict[tuple[str, str], Curve]:
        """Curves of the member that trains now, by panel and name."""
        return self.now.curves

    @property
    def lost(self) -> str:
        """Message on samples that were not trained on; set at the end."""
        return not_trained_on(self.result.get("runs") or [])

    @property
    def verdict(self) -> tuple[str, str]:
        """Tone and sentence of the verdict; set at the end."""
        return shown(self.result.get("verdict"))

    @property
    def result(self) -> Mapping[str, Any]:
        """Result of the run; empty before its end."""
        return (self.done.result if self.done else None) or {}

    def seconds_left(self) -> float | None:
        """Return the seconds until the current member ends; None while unknown."""
        if self.state != "running" or self.paused or not self.now.of_steps:
            return None
        return self.pace.seconds_for(self.now.of_steps - self.now.step)
