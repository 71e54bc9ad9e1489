"""From the events of a run to what there is to see: a machine without clock or widget.

Events in, facts to draw out. The same for the live view, for the picture that stays in a
saved notebook, and for a test.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from kdlab.events.blockwise import TraceRecorded
from kdlab.events.ensemble import ErrorsMeasured, LocalStep
from kdlab.events.event import Event
from kdlab.events.images import ImagesAnswered, ImagesChosen
from kdlab.events.runs import MemberStarted, RunDone, RunStarted
from kdlab.events.teachers import (
    MemoryLimits,
    Scheduled,
    TeacherJoined,
    TeacherLost,
    TeachersGone,
    ThresholdLimits,
)
from kdlab.events.training import (
    CheckpointSaved,
    EpochDone,
    Paused,
    Steered,
    StepLogged,
    WentOn,
)
from kdlab.notebook.curve import Curve
from kdlab.notebook.pace import Pace
from kdlab.notebook.teacher_rows import TeacherRows
from kdlab.report.table import not_trained_on
from kdlab.report.timeline import BarRow
from kdlab.report.verdict import shown

LOSS, SPEED, BUFFER = "loss", "speed", "unused soft labels"
TOP1, ERROR = "top-1 on validation", "test error"
# In the order in which they are drawn: unit of y, and what x is.
PANELS: Mapping[str, tuple[str, str]] = {
    LOSS: ("", "step"),
    TOP1: ("%", "epoch"),
    ERROR: ("%", "iteration"),
    SPEED: ("samples/s", "step"),
    BUFFER: ("samples", "step"),
}
# Panel, curve, key of an event.
_STEP = (
    (LOSS, "loss", "loss"),
    (SPEED, "student", "samples_per_second"),
    (BUFFER, "volume", "volume"),
)
_EPOCH = ((TOP1, "student", "validation_top1"),)
_LOOK = ((ERROR, "local (_L)", "chosen"), (ERROR, "global (_G)", "global_"))
_TICKER = 200
_MARKS = 200
# The head of the view and its curves show them.
_SEEN_OTHERWISE = (RunStarted, MemberStarted, ErrorsMeasured)


@dataclass(frozen=True, slots=True)
class Mark:
    """Where something happened to a training."""

    step: float
    epoch: float
    text: str
    kind: str  # "bad", "warn", "good", "set", "faint"


@dataclass(slots=True)
class Watch:
    """What one run has shown so far, of the member that trains now."""

    state: str = "starting"
    error: str = ""  # of a run that failed
    lost: str = ""  # samples that it was not trained on, when it has ended
    verdict: tuple[str, str] = ("", "")  # tone and words on its teacher, when it has ended
    experiment: str = ""
    members: list[str] = field(default_factory=list)  # all trainings of the run
    member: str = ""
    source: str = ""  # of its soft labels, or its variant
    shares_cores: bool = False  # with its teachers: its speed is no comparison
    began: float = 0.0  # of the member; seconds since 1970
    time: float = 0.0  # of the newest event
    step: int = 0
    of_steps: int = 0
    epoch: int = 0  # whole ones that are over
    of_epochs: int = 0
    rate: float = 0.0  # samples/s
    loss: float | None = None
    top1: float | None = None  # percent, on validation, newest
    paused: bool = False
    stranded: str = ""  # no teacher is left: what to do
    held: str = ""  # what holds teachers back though the student waits
    pace: Pace = field(default_factory=Pace)
    levels: dict[tuple[str, str], list[tuple[float, float]]] = field(default_factory=dict)
    curves: dict[tuple[str, str], Curve] = field(default_factory=dict)  # by panel and name
    marks: deque[Mark] = field(default_factory=lambda: deque(maxlen=_MARKS))
    teachers: TeacherRows = field(default_factory=TeacherRows)
    rounds: list[ErrorsMeasured] = field(default_factory=list)
    ticker: deque[tuple[float, str]] = field(default_factory=lambda: deque(maxlen=_TICKER))
    news: list[tuple[str, str, float, float]] = field(default_factory=list)
    images: ImagesChosen | None = None  # that are watched
    # Who said what of them last: "teacher", "student", and "student at first"
    answers: dict[str, ImagesAnswered] = field(default_factory=dict)
    spans: list[BarRow] = field(default_factory=list)  # what devices did, of blockwise runs
    values: dict[str, float] = field(default_factory=dict)  # that were set from outside
    chapter: int = 0  # grows when all curves begin anew
    _bounds: dict[str, float] = field(
        default_factory=dict
    )  # lt and ut of the spec, in samples

    def see(self, event: Event) -> None:
        """One event of `events.jsonl`."""
        self.time = event.time
        self._take(event)
        self.teachers.see(event)
        if not isinstance(event, _SEEN_OTHERWISE) and (line := event.text()):
            self.ticker.append((self.time, line))

    def _take(self, event: Event) -> None:
        match event:
            case StepLogged() | EpochDone() if event.member == "teacher" and self.member:
                pass  # curves are of the student
            case MemberStarted():
                self._begin(event)
            case RunStarted():
                self._begin_session(event)
            case StepLogged():
                self._stepped(event)
            case LocalStep():
                self.step, self.of_steps = event.step, event.of_steps
                self.rate, self.loss = event.samples_per_second, event.loss
                if event.worker == 0:
                    self.pace.step(event.time, event.step, {})
                if event.loss is not None:
                    self._point(LOSS, f"worker {event.worker}", self.step, event.loss)
            case EpochDone():
                self.epoch, self.of_epochs = event.epoch, event.of_epochs
                if event.validation_top1 is not None:
                    self.top1 = event.validation_top1
                self._points(_EPOCH, event, event.epoch)
            case RunDone():
                self.state, self.error = event.state, event.error or ""
                result = event.result or {}
                self.lost = not_trained_on(result.get("runs") or [])
                self.verdict = shown(result.get("verdict"))
                self.teachers.end(event.time)
            case _:
                self._take_more(event)

    def _take_more(self, event: Event) -> None:
        """Rounds, pauses and devices."""
        match event:
            case ErrorsMeasured():
                self.rounds.append(event)
                self._points(_LOOK, event, event.iterations)
            case Paused() | WentOn():
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
            case Scheduled() if not self.shares_cores:
                self._level(SPEED, "without a teacher", event.t_s)
            case Steered():
                self.values |= event.values
                said = ", ".join(
                    f"{name} = {value:g}" for name, value in event.values.items()
                )
                self._mark(f"set: {said}", "set")
                for name, value in event.values.items():
                    part, _, key = name.partition(".")
                    if part == "soft_labels" and (BUFFER, key) in self.levels:
                        self._level(BUFFER, key, float(value))
            case CheckpointSaved():
                self._mark("checkpoint", "faint")
            case TeacherJoined():
                self.stranded = ""
                if self.step:  # those of the start are no news
                    self._mark(f"{event.name} joined", "good")
            case TeacherLost():
                self._mark(f"{event.teacher} is lost: {event.why}", "bad")
            case TeachersGone():
                self.stranded = event.text()
                self._mark("no teacher is left", "bad")
            case ThresholdLimits() | MemoryLimits():
                self.held = event.text()

    def _stepped(self, event: StepLogged) -> None:
        self.step, self.of_steps, self.epoch = event.step, event.of_steps, event.epoch
        self.rate, self.loss = event.samples_per_second, event.loss
        self.pace.step(event.time, event.step, event.figures)
        self._points(_STEP, event, self.step)

    def _begin(self, event: MemberStarted) -> None:
        """Another member: its own curves; what came of the others stays."""
        self.member, self.source, self.began = str(event.member), event.source, event.time
        self.shares_cores = event.shares_cores
        self.paused, self.top1, self.loss = False, None, None
        self.stranded = self.held = ""
        self.chapter += 1
        for of_the_other in (
            self.values, self.curves, self.levels, self.marks, self.teachers.rows,
            self.rounds, self.news, self.spans,
        ):  # fmt: skip
            of_the_other.clear()
        self.answers = {k: v for k, v in self.answers.items() if k == "teacher"}
        self.pace.forget()
        self.step = self.of_steps = self.epoch = self.of_epochs = 0
        for name, value in self._bounds.items() if event.source == "served" else ():
            self._level(BUFFER, name, value)

    def _begin_session(self, event: RunStarted) -> None:
        self.state, self.error, self.paused = "running", "", False
        self.experiment, self.members = event.experiment, list(event.members or ())
        self.pace.forget()
        soft = (event.spec or {}).get("soft_labels") or {}
        if soft.get("type") == "cluster/served" and soft.get("thresholds_in") == "samples":
            self._bounds = {k: float(soft[k]) for k in ("lt", "ut") if soft[k] is not None}

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

    def _level(self, panel: str, name: str, value: float) -> None:
        """From here on: what was drawn before stays as it was."""
        self.levels.setdefault((panel, name), []).append((self.step, value))

    def _mark(self, text: str, kind: str) -> None:
        share = self.step / self.of_steps if self.of_steps else 0.0
        epoch = share * self.of_epochs if self.of_epochs else float(self.epoch)
        self.marks.append(Mark(self.step, epoch, text, kind))

    def take_news(self) -> list[tuple[str, str, float, float]]:
        """Points since the last call: (panel, curve, x, y)."""
        found, self.news = self.news, []
        return found

    @property
    def panels(self) -> list[str]:
        """In the order they are drawn; only those that have a curve."""
        present = {panel for panel, _ in self.curves}
        return [panel for panel in PANELS if panel in present]

    def seconds_left(self) -> float | None:
        """Until the member that trains now is done; None while its pace is not known."""
        if self.state != "running" or self.paused or not self.of_steps:
            return None
        return self.pace.seconds_for(self.of_steps - self.step)
