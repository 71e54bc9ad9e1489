"""A sweep from outside: watched, stopped, its best saved. It outlives this process."""

import math
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import optuna
from rich.text import Text

from kdlab.codec import from_builtins
from kdlab.config import folders
from kdlab.errors import BadInput, NotFoundError
from kdlab.events.event import Event
from kdlab.events.sweep_state import SweepState
from kdlab.events.sweeps import TrialDone
from kdlab.experiment.folder import RunStatus
from kdlab.report import chart, page
from kdlab.report.progress import people
from kdlab.report.table import number, text_table_left
from kdlab.run.handle.job_handle import JobHandle, viewers
from kdlab.tuning.best import row
from kdlab.tuning.figures import importance
from kdlab.tuning.folder import SweepFolder, find, read_study
from kdlab.tuning.outcome import SweepOutcome, SweepResult, TrialRow
from kdlab.tuning.spec import SweepSpec

NAME = re.compile(r"[A-Za-z0-9][\w.-]*")
_QUICK_S, _EACH = 1.0, 20  # of quicker trials every twentieth is a line


def check_name(name: str) -> None:
    """Refuse, as BadInput, what is no name for the best, or is there already."""
    if not NAME.fullmatch(name):
        raise BadInput(f"{name!r} is no name; take letters, digits, - and _.")
    here = Path.cwd()
    there = [*here.glob(f"configs/{name}.yaml"), *here.glob(f"registry/*/{name}.yaml")]
    if there:
        raise BadInput(f"{folders.display(there[0])} is there already. Take another name.")


def attach_sweep(study: str = "last") -> "Sweep":
    """A sweep that exists, running or not; NotFoundError where there is none of this name."""
    return Sweep(find(study))


class Sweep(JobHandle):
    """Watch, wait for and stop a sweep. Several of these may look at the same one."""

    folder: SweepFolder

    @property
    def name(self) -> str:
        return f"sweeps/{self.id}"

    @contextmanager
    def lines(self) -> Iterator[Callable[[Event], None]]:
        yield ProgressLines().see

    @property
    def spec(self) -> SweepSpec:
        return self.folder.sweep()

    @property
    def result(self) -> SweepResult:
        """As `kdlab sweep --json` prints it; a notebook shows it in words.

        Raises:
            RunFailed, RunStopped, NotFoundError: it has none, and why.
        """
        return SweepResult(self._result_or_raise())

    @property
    def outcome(self) -> SweepOutcome:
        """The same, checked; in words where it is printed."""
        return from_builtins(SweepOutcome, self.result)

    def _why_no_result(self, status: RunStatus) -> str:
        again = f"    {self.folder.resume_command}"
        if status.state == "stopped":
            return f"The sweep {self.id} was stopped; it goes on with:\n{again}"
        if status.state not in ("failed", "lost"):
            return f"The sweep {self.id} is {status.state}; no result yet."
        what = status.error or "its process was killed from outside"
        words = f"The sweep {self.id} failed: {what}\nLog: {self.folder.log}"
        if again in what:  # of a full disk
            return words
        return f"{words}\nWhat has ended is kept; after mending the cause it goes on with:\n{again}"

    @property
    def study(self) -> optuna.Study:
        """Optuna's, to look at: `sweep.study.trials_dataframe()`."""
        return read_study(self.folder, self.spec.storage)

    def rows(self) -> list[TrialRow]:
        """One for each trial so far."""
        try:
            trials = self.study.get_trials(deepcopy=False)
        except (NotFoundError, KeyError):  # the study is being made
            return []
        spec = self.spec
        return [row(trial, spec) for trial in trials if trial.state.name != "WAITING"]

    def table(self, most: int = 15) -> str:
        """The best trials, as text."""
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
        """PNG files of the study; drawn at its end."""
        return sorted((self.path / "figures").glob("*.png"))

    def importance(self) -> dict[str, float]:
        """The share of each setting in what good trials differ by from all; empty before ten.

        By PED-ANOVA (Watanabe and others, IJCAI 2023), of the first objective.
        """
        try:
            return importance(self.study)
        except (NotFoundError, KeyError):  # it is being made
            return {}

    def save(self, name: str) -> list[Path]:
        """The best as configs/NAME.yaml and cards of the current folder.

        Raises:
            NotFoundError: the sweep has no best yet.
            BadInput: a file of this name is there already.
        """
        check_name(name)
        made = sorted((self.path / "best").rglob("*.yaml"))
        if not made:
            raise NotFoundError(f"The sweep {self.id} has no best yet; it is {self.state}.")
        targets = []
        for source in made:
            folder = Path.cwd() / source.relative_to(self.path / "best").parent
            folder.mkdir(parents=True, exist_ok=True)
            targets.append(Path(shutil.copyfile(source, folder / f"{name}.yaml")))
        return targets

    def live(self) -> object:
        """Watch it: in a notebook as a table that follows, in a terminal by lines."""
        return self._shown_live(
            lambda: viewers["sweep"](self, self._repr_html_, self.importance)
        )

    def __repr__(self) -> str:
        return f"Sweep({self.id}, {self.state}, {_ended(self.rows())} trials ended)"

    def _repr_html_(self) -> str:
        """Where it stands: the curve of the best so far, and the best trials."""
        spec, rows, sign = self.spec, self.rows(), self.spec.signs()[0]
        name, best = spec.objectives[0].metric, math.inf
        each, so_far = list[tuple[float, float]](), list[tuple[float, float]]()
        for one in rows:
            if one.values is None:
                continue
            each.append((float(one.number), float(one.values[name])))
            if one.feasible:
                best = min(best, sign * one.values[name])
                so_far.append((float(one.number), sign * best))
        curves = {"best so far": so_far, "trial": each}
        panel = chart.Panel(name, curves, across="number of the trial")
        drawn = page.charts([panel]) if len(each) > 1 else []
        cards = [*drawn, page.Card("Best trials", page.table(*self._cells(12)))]
        detail = f"{_ended(rows)} of {spec.trials} trials ended"
        said = [("bad", str(self.status.error))] if self.status.error else []
        return page.CardPage(f"Sweep {self.id}", cards, said, detail, self.state).html()


class ProgressLines:
    """What happens, in a terminal; feed it events with `see`."""

    def __init__(self) -> None:
        self.console = people()
        self.sweep = SweepState()

    def see(self, event: Event) -> None:
        best = self.sweep.best
        self.sweep.see(event)
        if isinstance(event, TrialDone):
            new = self.sweep.best is not best
            quick = event.state != "failed" and (event.seconds or 0.0) < _QUICK_S
            if new or not quick or event.ended % _EACH == 0:
                self._say(self._of_trial(event, " best so far" if new else ""))
        if line := event.text():
            self._say(line)

    def _of_trial(self, event: TrialDone, mark: str) -> str:
        head = f"  {event.ended}/{event.of_trials}  trial {event.number}"
        if event.state == "failed":
            return f"{head} failed: {str(event.error).splitlines()[0]}"
        if event.state == "pruned":
            return f"{head} pruned after {event.epoch} epochs"
        found = event.values_found or {}
        words = [f"{name} {number(found.get(name))}" for name in self.sweep.objectives]
        seconds = "" if event.seconds is None else f"  {event.seconds:.1f} s"
        mark = " breaks a constraint" if event.feasible is False else mark
        return f"{head}  {'  '.join(words)}{seconds} {mark}".rstrip()

    def _say(self, line: str) -> None:
        # Text, not markup: names from configs must not be read as colours.
        self.console.print(Text(line), highlight=False, soft_wrap=True)


def _ended(rows: Sequence[TrialRow]) -> int:
    return sum(r.state in ("complete", "pruned", "fail") for r in rows)


def _short(text: str, most: int = 70) -> str:
    """What went wrong is on the last line of most errors."""
    last = text.strip().splitlines()[-1].strip()
    return last if len(last) <= most else f"{last[: most - 1]}…"
