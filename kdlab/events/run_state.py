"""The state of a run and its history, from its events alone: no clock, no file, no view.

Terminal, live view, saved picture and comparison read this, so that they agree. After a resume the
history is kept, without the steps that were undone; the time between two sessions does not count.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import inf

from kdlab.events.blockwise import WholeStudentStarted
from kdlab.events.checks import CheckMade
from kdlab.events.curve import Curve, CurvePoints, thinned
from kdlab.events.ensemble import ErrorsMeasured, LocalStep, WorkerResumed
from kdlab.events.event import Event
from kdlab.events.runs import MachineUsed, MemberDone, MemberStarted, RunDone, RunStarted
from kdlab.events.teacher_rows import TeacherRows
from kdlab.events.teachers import AllTeachersLost
from kdlab.events.training import EpochDone, Resumed, SettingsReverted, StepLogged

LOSS, SPEED, BUFFER = "loss", "speed", "unused soft labels"
TOP1, ERROR = "top-1 on validation", "test error"
MACHINE, MEMORY = "machine", "memory"  # of all processes of the run
# Unit of y, and what x is, in the order in which panels are drawn.
PANELS: Mapping[str, tuple[str, str]] = {
    LOSS: ("", "step"),
    TOP1: ("%", "epoch"),
    ERROR: ("%", "iteration"),
    SPEED: ("samples/s", "step"),
    BUFFER: ("samples", "step"),
    MACHINE: ("%", "step"),
    MEMORY: ("GiB", "step"),
}
SECONDS, COUNT = 1, 2  # columns of a point: x, seconds, samples or iterations, y


@dataclass(slots=True)
class TrainingState:
    """One training of a run. Its curves count steps, epochs and samples over all its parts."""

    member: str = ""
    source: str = ""  # of its soft labels, or its variant
    shares_cores: bool = False  # with its teachers, so its speed cannot be compared
    began: float = 0.0  # seconds since 1970
    seconds: float = 0.0  # so far
    step: int = 0
    of_steps: int = 0
    epoch: int = 0  # finished epochs
    of_epochs: int = 0
    rate: float = 0.0  # samples/s
    loss: float | None = None
    top1: float | None = None  # percent, on validation, newest
    figures: dict[str, float] = field(default_factory=dict)  # of the soft-label source
    curves: dict[tuple[str, str], Curve] = field(default_factory=dict)  # by panel and name
    counted: str = "samples"
    teachers: TeacherRows = field(default_factory=TeacherRows)
    rounds: list[ErrorsMeasured] = field(default_factory=list)
    # (panel, curve, x, y) of the points that the newest event added
    new: list[tuple[str, str, float, float]] = field(default_factory=list)
    undone: int = 0  # how often curves lost points
    from_clock: float = 0.0  # `clock` of its start
    ended: bool = False
    _at: float = 0.0  # seconds of the next point
    _samples: float = 0.0
    _before: tuple[int, int, float] = (0, 0, 0.0)  # steps, epochs, samples of earlier parts
    # Steps, epochs, samples where the blocks ended
    _blocks: tuple[int, int, float] | None = None

    def over(self, column: int) -> dict[tuple[str, str], CurvePoints]:
        """Curves over SECONDS or COUNT, thinned for a small picture."""
        return {key: thinned(curve.over(column)) for key, curve in self.curves.items()}

    def apply(self, event: Event, clock: float) -> None:
        """Update the state by an event; `clock` is seconds without pauses between sessions."""
        self.ended = self.ended and not isinstance(event, MemberStarted)
        if not self.ended:
            self.seconds = self._at = clock - self.from_clock
        self.new.clear()
        self.teachers.apply(event)
        match event:
            case MemberStarted():  # again, after a stop
                self._before = (0, 0, 0.0)
            case WholeStudentStarted():  # it counts from 0 again
                self._blocks = self._blocks or (self.step, self.epoch, self._samples)
                self._before, self._samples = self._blocks, 0.0
            case AllTeachersLost():  # no step follows that would report it
                self.figures["teachers"] = 0.0
            case WorkerResumed():
                self._undo((LOSS,), event.step, name=f"worker {event.worker}")
            case SettingsReverted():  # its next reader asks for teachers anew
                self.teachers.end(event.time)
            case Resumed():
                self._undo_after(event)
            case MemberDone():
                self.ended = True
                self.teachers.end(event.time)
            case _:
                self._apply(event)

    def _apply(self, event: Event) -> None:
        steps, epochs, _ = self._before
        match event:
            case StepLogged():
                self.epoch, self._samples = event.epoch, float(event.samples_seen)
                self.figures |= event.figures
                self._stepped(event)
                name = "loss" if event.block_losses is None else "loss of the blocks"
                self._point(LOSS, name, steps + event.step, event.loss)
                self._point(SPEED, "student", steps + event.step, self.rate)
                volume = event.figures.get("volume")
                self._point(BUFFER, "volume", steps + event.step, volume)
            case MachineUsed():
                self._used(event, steps + self.step)
            case LocalStep():
                self.counted = "iterations"
                self._stepped(event)
                self._point(LOSS, f"worker {event.worker}", event.step, event.loss)
            case EpochDone():
                self.epoch, self.of_epochs = event.epoch, event.of_epochs
                if event.validation_top1 is not None:
                    self.top1 = event.validation_top1
                self._point(TOP1, "student", epochs + event.epoch, event.validation_top1)
            case ErrorsMeasured():
                self.counted, self._samples = "iterations", float(event.iterations)
                self._at = event.parallel_s  # of machines side by side
                self.rounds.append(event)
                self._point(ERROR, "local (_L)", event.iterations, event.chosen)
                self._point(ERROR, "global (_G)", event.iterations, event.global_)

    def _used(self, event: MachineUsed, step: int) -> None:
        """Add points of the machine's use; they are over steps, so none before the first."""
        before = self.curves.get((MACHINE, "CPU"))
        if step > (before.last[0] if before and before.last else 0):
            self._point(MACHINE, "CPU", step, event.cpu)
            self._point(MEMORY, "processes", step, event.memory)
            for number, (percent, memory) in enumerate(event.gpus):
                self._point(MACHINE, f"GPU {number}", step, percent)
                self._point(MEMORY, f"GPU {number}", step, memory)

    def _stepped(self, event: StepLogged | LocalStep) -> None:
        self.step, self.of_steps = event.step, event.of_steps
        self.rate, self.loss = event.samples_per_second, event.loss

    def _undo_after(self, event: Resumed) -> None:
        """Remove the steps after the checkpoint, which are done again."""
        steps, epochs, _ = self._before
        if self.counted == "samples":
            self.step, self.epoch = event.step, event.epoch
            blocks = self._blocks if self._blocks and not steps else (inf, inf)
            by_step = LOSS, SPEED, BUFFER, MACHINE, MEMORY
            self._undo(by_step, steps + event.step, blocks[0])
            self._undo((TOP1,), epochs + event.epoch, blocks[1])
            return
        self.rounds = [errors for errors in self.rounds if errors.round < event.epoch]
        self._undo((ERROR,), self.rounds[-1].iterations if self.rounds else -1)

    def _undo(
        self, panels: Iterable[str], after: float, until: float = inf, name: str = ""
    ) -> None:
        for (panel, curve), points in self.curves.items():
            if panel in panels and name in ("", curve):
                self.undone += points.undo(after, until)

    def _point(self, panel: str, name: str, x: float, y: float | None) -> None:
        if y is None:
            return
        curve = self.curves.setdefault((panel, name), Curve())
        # Steps after a checkpoint, done again
        if curve.last is not None and x <= curve.last[0]:
            self.undone += curve.undo(x - 1)
        curve.add(float(x), self._at, self._before[2] + self._samples, float(y))
        self.new.append((panel, name, float(x), float(y)))

    @property
    def at(self) -> tuple[int, float]:
        """Position on its curves: step, and epoch with its finished share."""
        share = self.step / self.of_steps if self.of_steps else 0.0
        epoch = share * self.of_epochs if self.of_epochs else float(self.epoch)
        return self._before[0] + self.step, self._before[1] + epoch

    @property
    def panels(self) -> list[str]:
        """Panels of a picture that have a curve, in the order in which they are drawn."""
        present = {panel for panel, _ in self.curves} - {MACHINE, MEMORY}
        return [panel for panel in PANELS if panel in present]


@dataclass
class RunState:
    """The state of a run after its events so far."""

    state: str = "starting"
    error: str = ""  # of a run that failed
    started: RunStarted | None = None  # the newest session
    done: RunDone | None = None  # its end
    time: float = 0.0  # of the newest event
    trainings: dict[str, TrainingState] = field(default_factory=dict)  # by name
    now: TrainingState = field(default_factory=TrainingState)  # of the newest one
    newest: TrainingState = field(default_factory=TrainingState)  # or of its teacher
    checks: dict[str, CheckMade] = field(default_factory=dict)  # the newest of each code
    _others: dict[str, TrainingState] = field(default_factory=dict)  # trainings of teachers
    _between: float = 0.0  # seconds between sessions so far

    def apply(self, event: Event) -> None:
        """Apply one event of `events.jsonl`."""
        match event:
            case RunStarted():
                self._begin_session(event)
            case MemberStarted():
                self._begin(event)
            case CheckMade():
                self.checks[event.code] = event
            case RunDone():
                self.state, self.error, self.done = event.state, event.error or "", event
                self.now.teachers.end(event.time)
        self.time = event.time or self.time  # a damaged line has none
        self.newest = self._training(event.member or self.now.member)
        self.newest.apply(event, self.time - self._between)

    @property
    def experiment(self) -> str:
        return self.started.experiment if self.started else ""

    def _begin_session(self, event: RunStarted) -> None:
        self.state, self.error, self.started, self.done = "running", "", event, None
        self.checks.clear()
        for training in self.trainings.values():
            training.teachers.end(self.time)
        self._between += event.time - self.time if self.time else 0.0

    def _begin(self, event: MemberStarted) -> None:
        member, clock = str(event.member), event.time - self._between
        training = TrainingState(
            member, event.source, event.shares_cores, event.time, from_clock=clock
        )
        self.now = self.trainings.setdefault(member, training)

    def _training(self, member: str) -> TrainingState:
        """Training of a member; a teacher's is the current one until the first member starts."""
        if member == self.now.member:
            return self.now
        if member in self.trainings:
            return self.trainings[member]
        training = self._others.setdefault(member, TrainingState(member))
        if not self.trainings:
            self.now = training
        return training


def run_state(events: Iterable[Event]) -> RunState:
    """Return the state of a run after all of these events."""
    state = RunState()
    for event in events:
        state.apply(event)
    return state
