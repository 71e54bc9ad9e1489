"""Tools of all benches: turns, parts, processes, runs apart, and a report with goals.

A bench says what to measure. Values come in turns, forth and back, so that a drift of the machine
meets all alike; a figure is their median with the smallest and the largest. What is promised of it
stands beside the claims, in `results/rows.csv`: under the name of a claim, or `bench/NAME`.
"""

import csv
import os
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

import psutil

from benchmarks.child import Call
from kdlab.codec import from_builtins
from kdlab.errors import BadInput, ClusterError, RunFailed
from kdlab.events.log import select
from kdlab.events.training import StepLogged
from kdlab.report import figures
from kdlab.report.figures import EmitLine, Figure, Report
from kdlab.run.experiment import Experiment
from kdlab.run.handle.run import Run
from kdlab.supervision.children import Child

T = TypeVar("T")
Name = TypeVar("Name", bound=str)
Parts = Mapping[str, Callable[[], list[Figure]]]

_ROWS = Path(__file__).parent / "results" / "rows.csv"
_ALSO = {"teacher": "engines"}  # claims that a bench measures under another name
_TICK_S = 0.05
_SILENT_S = 8.0  # nobody waits for longer without hearing what goes on
_END_S = 20.0  # so long what a run started has, to end with it


def quiet(line: str) -> None:
    """Drop a line of progress."""


# Figures


def report(name: str, measured: Sequence[Figure]) -> Report:
    """Make the report of a bench, with the goal of each figure."""
    promised = _goals(name)
    for entry in measured:
        goals = (goal for pattern, goal in promised if _fits(entry["name"], pattern))
        if goal := next(goals, None):
            entry["goal"], entry["holds"] = goal, figures.meets(entry["value"], goal)
    return figures.report(name, list(measured))


def _goals(bench: str) -> list[tuple[str, str]]:
    """Names of figures, with * in place of parts, and what is promised of each."""
    with _ROWS.open(encoding="utf-8", newline="") as file:
        return [
            (line["measured_by"], line["goal"])
            for line in csv.DictReader(file)
            if line["goal"]
            and (
                line["name"] in (bench, f"bench/{bench}", _ALSO.get(bench))
                or line["name"].startswith(f"{bench}/")
            )
        ]


def _fits(name: str, pattern: str) -> bool:
    pairs = list(zip(name.split("/"), pattern.split("/"), strict=False))
    alike = name.count("/") == pattern.count("/")
    return alike and all(fnmatchcase(part, like) for part, like in pairs)


def of_parts(name: str, parts: Parts, only: Collection[str]) -> Report:
    """Report the figures of all parts of a bench, or of those in `only`, in their order.

    Raises:
        BadInput: it has no such part.
    """
    check_parts(name, parts, only)
    chosen = [part for label, part in parts.items() if not only or label in only]
    return report(name, [entry for part in chosen for entry in part()])


def check_parts(name: str, parts: Collection[str], only: Collection[str]) -> None:
    """Refuse names that are no part of a bench.

    Raises:
        BadInput: it has no such part.
    """
    unknown = set(only) - set(parts)
    if unknown:
        raise BadInput(
            f"bench {name} has no part {', '.join(sorted(unknown))}; it has {', '.join(parts)}."
        )


# Time


def in_turns(
    works: Mapping[Name, Callable[[], float]],
    rounds: int,
    say: EmitLine = quiet,
    unit: str = "",
    *,
    warm_up: int = 0,
) -> dict[Name, list[float]]:
    """Return what each work measures in each round after `warm_up`; the order alternates."""
    series: dict[Name, list[float]] = {name: [] for name in works}
    order = list(works)
    for number in range(-warm_up, rounds):
        now = {name: works[name]() for name in order}
        order.reverse()
        if number >= 0:
            for name, values in series.items():
                values.append(now[name])
            shown = ", ".join(f"{name} {now[name]:.4g}" for name in series)
            say(f"{number + 1}/{rounds}: {shown} {unit}".rstrip())
    return series


def timed(work: Callable[[], object]) -> float:
    """Measure the seconds that a work takes."""
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def until(
    condition: Callable[[], bool],
    meanwhile: Callable[[], None] = lambda: None,
    *,
    patience_s: float = 120.0,
    missing: str = "what the benchmark waits for did not happen",
    tick_s: float = 0.01,
) -> None:
    """Wait until a condition holds.

    Raises:
        ClusterError: with `missing`, when it does not within the time.
    """
    deadline = time.monotonic() + patience_s
    while not condition():
        if time.monotonic() > deadline:
            raise ClusterError(f"{missing} (waited {patience_s:g} s)")
        meanwhile()
        time.sleep(tick_s)  # between looks


class Pulse:
    """Reports progress, and repeats what is under way after a long silence."""

    def __init__(self, say: EmitLine, now: Callable[[], float] = time.monotonic) -> None:
        self._say, self._now = say, now
        self._doing, self._since = "starting", now()
        self._last = self._since

    def say(self, line: str) -> None:
        self._last = self._now()
        self._say(line)

    def does(self, doing: str) -> None:
        """Set what is under way from now on; it is reported if it takes long."""
        self._doing, self._since = doing, self._now()

    def beat(self) -> None:
        if (now := self._now()) - self._last >= _SILENT_S:
            self.say(f"{self._doing}, for {now - self._since:.0f} s")


# Processes


class Scratch(ExitStack):
    """A folder, and the processes that write there; without a folder, a temporary one."""

    def __init__(self, folder: Path | None = None) -> None:
        super().__init__()
        self.folder = folder or Path(self.enter_context(tempfile.TemporaryDirectory()))

    def child(self, module: str, config: object, log: str, **options: Any) -> Child:
        """Start a process of one core that runs a module; `options` are those of `Child`."""
        variables = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
        log_path = self.folder / f"{log}.log"
        child = Child(module, config, log_path, environment=variables, **options)
        self.callback(child.stop)
        return child

    def calling(
        self,
        function: Callable[..., object],
        arguments: Mapping[str, object],
        *,
        number: int = 0,
        **options: Any,
    ) -> Child:
        """Start a process that calls a function of a bench and announces its result as `done`."""
        call = Call(f"{function.__module__}:{function.__qualname__}", arguments)
        log = f"{function.__name__}{number}"
        return self.child("benchmarks.child", call, log, **options)

    def results(
        self,
        function: Callable[..., T],
        each: Sequence[Mapping[str, object]],
        *,
        at_once: int = 1,
        patience_s: float,
        say: EmitLine = quiet,
    ) -> list[T]:
        """Call a function in a process for each of these arguments; results are in their order.

        Args:
            function: of a bench.
            each: arguments of one process.
            at_once: number of processes at a time.
            patience_s: for all together.
            say: gets what a process announces as `say`, and in long silences as `doing`.

        Raises:
            ClusterError: one ended before it was done, or they take too long.
        """
        kind: type[T] = get_type_hints(function)["return"]
        results: dict[int, T] = {}
        going: dict[int, Child] = {}
        waiting = list(enumerate(each))
        missing = f"processes of {function.__name__} are not done"
        pulse = Pulse(say)

        def done() -> bool:
            while waiting and len(going) < at_once:
                number, arguments = waiting.pop(0)
                going[number] = self.calling(function, arguments, number=number)
            for number, child in list(going.items()):
                ended = not child.alive()  # first: messages from before its end count
                for message in child.messages():
                    if "done" in message:
                        results[number] = from_builtins(kind, message["done"])
                        pulse.does(f"{len(results)} of {len(each)} done")
                    elif "say" in message:
                        pulse.say(str(message["say"]))
                    elif "doing" in message:
                        pulse.does(str(message["doing"]))
                if ended and number not in results:
                    raise ClusterError(child.exit_report("ended before it was done"))
                if ended:
                    going.pop(number).stop()
            pulse.beat()
            return not waiting and not going

        until(done, patience_s=patience_s, missing=missing, tick_s=_TICK_S)
        return [results[number] for number in range(len(each))]


# Runs


@contextmanager
def runs_apart() -> Iterator[None]:
    """Run folders go to a temporary folder, and not to those of whoever measures."""
    before = os.environ.get("KDLAB_RUNS")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["KDLAB_RUNS"] = folder
        try:
            yield
        finally:
            del os.environ["KDLAB_RUNS"]
            if before is not None:
                os.environ["KDLAB_RUNS"] = before


@contextmanager
def going(experiment: Experiment) -> Iterator[Run]:
    """Start a run; in the end it is killed with all processes that it started."""
    run = experiment.start(quiet)
    try:
        yield run
    finally:
        processes = run.folder.family()
        run.kill()
        for process in psutil.wait_procs(processes, timeout=_END_S)[1]:
            with suppress(psutil.Error):
                process.kill()


def check_goes_on(run: Run) -> None:
    """Refuse a run that has ended.

    Raises:
        RunFailed: it has ended; says why.
    """
    if run.state not in ("starting", "running"):
        raise RunFailed(
            f"Run {run.id} is {run.state}: {run.status.error or run.folder.log}"
        )


def steps_of(run: Run) -> list[StepLogged]:
    """Return the logged steps of the student; RunFailed where the run has ended."""
    check_goes_on(run)
    return [e for e in select(run.folder.events, StepLogged) if e.member != "teacher"]
