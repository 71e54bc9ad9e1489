"""Handle of a sweep: watch it, stop it, save its best. The sweep outlives this process."""

import math
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import optuna
from rich.text import Text

from kdlab.codec import from_builtins
from kdlab.config import folders, limits
from kdlab.errors import BadInput, NotFoundError, short
from kdlab.events.event import Event
from kdlab.events.sweep_state import SweepState
from kdlab.events.sweeps import TrialDone
from kdlab.experiment.folder import RunStatus
from kdlab.report import chart, page
from kdlab.report.progress import stderr_console
from kdlab.report.table import number, text_table_left
from kdlab.run.handle.job_handle import JobHandle, viewers
from kdlab.tuning.best import row
from kdlab.tuning.figures import importance
from kdlab.tuning.folder import SweepFolder, find, read_study
from kdlab.tuning.outcome import SweepOutcome, SweepResult, TrialRow
from kdlab.tuning.spec import SweepSpec

_NAME = re.compile(r"[A-Za-z0-9][\w.-]*")
_QUICK_S, _EACH = 1.0, 20  # of quicker trials, one in twenty is printed


def require_name(name: str) -> None:
    """Raise BadInput for an invalid name of a study or its best."""
    if not _NAME.fullmatch(name) or len(name.encode()) > limits.NAME:
        words = f"letters, digits, - and _, {limits.NAME} bytes at most"
        raise BadInput(f"{short(repr(name))} is no name; use {words}.")


def check_name(name: str) -> None:
    """Raise BadInput for an invalid name for the best, or one that exists."""
    require_name(name)
    folder = Path.cwd()
    files = [*folder.glob(f"configs/{name}.yaml"), *folder.glob(f"registry/*/{name}.yaml")]
    if files:
        raise BadInput(f"{folders.display(files[0])} exists already. Choose another name.")


def attach_sweep(study: str = "last") -> "Sweep":
    """Attach to a sweep, running or not; NotFoundError where there is none of this name."""
    return Sweep(find(study))


class Sweep(JobHandle):
    """Watch, wait for and stop a sweep. Several handles may share one sweep."""

    folder: SweepFolder

    @property
    def name(self) -> str:
        return f"sweeps/{self.id}"

    @contextmanager
    def lines(self) -> Iterator[Callable[[Event], None]]:
        yield ProgressLines().on_event

    @property
    def spec(self) -> SweepSpec:
        return self.folder.sweep()

    @property
    def result(self) -> SweepResult:
        """Result, with the keys of `kdlab sweep --json`; a notebook shows a summary.

        Raises:
            RunFailed, RunStopped, NotFoundError: there is none, with the reason.
        """
        return SweepResult(self._result_or_raise())

    @property
    def outcome(self) -> SweepOutcome:
        """Typed result; prints as a summary."""
        return from_builtins(SweepOutcome, self.result)

    def _why_no_result(self, status: RunStatus) -> str:
        command = f"    {self.folder.resume_command}"
        if status.state == "stopped":
            return f"The sweep {self.id} was stopped. Continue with:\n{command}"
        if status.state not in ("failed", "lost"):
            return f"The sweep {self.id} is {status.state}; no result yet."
        error = status.error or "its process was killed from outside"
        message = f"The sweep {self.id} failed: {error}\nLog: {self.folder.log}"
        if command in error:  # the message of a full disk has it
            return message
        return (
            f"{message}\nFinished trials are saved. Fix the cause and continue:\n{command}"
        )

    @property
    def study(self) -> optuna.Study:
        """Optuna's study, to read: `sweep.study.trials_dataframe()`."""
        return read_study(self.folder, self.spec.storage)

    def rows(self) -> list[TrialRow]:
        """Return a row for each trial so far."""
        try:
            trials = self.study.get_trials(deepcopy=False)
        except (NotFoundError, KeyError):  # the study does not exist yet
            return []
        spec = self.spec
        return [row(trial, spec) for trial in trials if trial.state.name != "WAITING"]

    def table(self, most: int = 15) -> str:
        """Return the best trials as a text table."""
        return text_table_left(*self._cells(most))

    def _cells(self, most: int) -> tuple[list[str], list[list[str]]]:
        spec, rows = self.spec, self.rows()
        names = [o.metric for o in spec.objectives]
        again = {r.retry_of for r in rows}

        def place(row: TrialRow) -> tuple[bool, bool, float]:
            first = 0.0 if row.values is None else spec.signs()[0] * row.values[names[0]]
            return row.values is None, not row.feasible, first

        shown = sorted((r for r in rows if r.number not in again), key=place)[:most]
        head = ["trial", "state", *names, *spec.space, "from"]
        return head, [
            [
                str(r.number),
                r.state if r.feasible is not False else "breaks a constraint",
                *(number(None if r.values is None else r.values[n]) for n in names),
                *(number(r.set.get(k)) for k in spec.space),
                _short(str(r.error or r.why)),
            ]
            for r in shown
        ]

    def pictures(self) -> list[Path]:
        """Return the PNG plots of the study; drawn at its end."""
        return sorted((self.path / "figures").glob("*.png"))

    def importance(self) -> dict[str, float]:
        """Return the importance of each key for the first objective; empty before ten trials.

        PED-ANOVA (Watanabe et al., IJCAI 2023): how far good trials differ from all.
        """
        try:
            return importance(self.study)
        except (NotFoundError, KeyError):  # no study yet
            return {}

    def save(self, name: str) -> list[Path]:
        """Save the best as configs/NAME.yaml and cards of the current folder.

        Raises:
            NotFoundError: the sweep has no best yet.
            BadInput: a file of this name exists.
        """
        check_name(name)
        sources = sorted((self.path / "best").rglob("*.yaml"))
        if not sources:
            raise NotFoundError(f"The sweep {self.id} has no best yet; it is {self.state}.")
        targets = []
        for source in sources:
            folder = Path.cwd() / source.relative_to(self.path / "best").parent
            folder.mkdir(parents=True, exist_ok=True)
            targets.append(Path(shutil.copyfile(source, folder / f"{name}.yaml")))
        return targets

    def live(self) -> object:
        """Watch the sweep: as a live table in a notebook, as lines in a terminal."""
        return self._shown_live(
            lambda: viewers["sweep"](self, self._repr_html_, self.importance)
        )

    def __repr__(self) -> str:
        return f"Sweep({self.id}, {self.state}, {_ended(self.rows())} trials ended)"

    def _repr_html_(self) -> str:
        """HTML for notebooks: the curve of the best so far, and the best trials."""
        spec, rows, sign = self.spec, self.rows(), self.spec.signs()[0]
        name, best = spec.objectives[0].metric, math.inf
        points, so_far = list[tuple[float, float]](), list[tuple[float, float]]()
        for trial in rows:
            if trial.values is None:
                continue
            points.append((float(trial.number), float(trial.values[name])))
            if trial.feasible:
                best = min(best, sign * trial.values[name])
                so_far.append((float(trial.number), sign * best))
        curves = {"best so far": so_far, "trial": points}
        panel = chart.Panel(name, curves, across="number of the trial")
        drawn = page.charts([panel]) if len(points) > 1 else []
        cards = [*drawn, page.Card("Best trials", page.table(*self._cells(12)))]
        detail = f"{_ended(rows)} of {spec.trials} trials ended"
        alerts = [("bad", str(self.status.error))] if self.status.error else []
        return page.CardPage(f"Sweep {self.id}", cards, alerts, detail, self.state).html()


class ProgressLines:
    """Print a sweep's progress in a terminal; pass events to `on_event`."""

    def __init__(self) -> None:
        self.console = stderr_console()
        self.sweep = SweepState()

    def on_event(self, event: Event) -> None:
        best = self.sweep.best
        self.sweep.apply(event)
        if isinstance(event, TrialDone):
            new = self.sweep.best is not best
            quick = event.state != "failed" and (event.seconds or 0.0) < _QUICK_S
            if new or not quick or event.ended % _EACH == 0:
                self._print_line(self._trial_line(event, " best so far" if new else ""))
        if line := event.text():
            self._print_line(line)

    def _trial_line(self, event: TrialDone, mark: str) -> str:
        head = f"  {event.ended}/{event.of_trials}  trial {event.number}"
        if event.state == "failed":
            return f"{head} failed: {str(event.error).splitlines()[0]}"
        if event.state == "pruned":
            return f"{head} pruned after {event.epoch} epochs"
        values = event.values_found or {}
        words = [f"{name} {number(values.get(name))}" for name in self.sweep.objectives]
        seconds = "" if event.seconds is None else f"  {event.seconds:.1f} s"
        mark = " breaks a constraint" if event.feasible is False else mark
        return f"{head}  {'  '.join(words)}{seconds} {mark}".rstrip()

    def _print_line(self, line: str) -> None:
        # Text, not markup: names from configs must not become colours.
        self.console.print(Text(line), highlight=False, soft_wrap=True)


def _ended(rows: Sequence[TrialRow]) -> int:
    return sum(r.state in ("complete", "pruned", "fail") for r in rows)


def _short(text: str, most: int = 70) -> str:
    """Shorten an error to its last line, which most often has the cause."""
    last = text.strip().splitlines()[-1].strip()
    return last if len(last) <= most else f"{last[: most - 1]}…"
