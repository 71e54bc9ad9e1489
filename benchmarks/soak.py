"""`kdlab bench soak`: whether the processes of a long served run keep their size.

A student learns from real small teachers in processes of their own, with tracking and
checkpoints as every run has them. After a fifth of the time, in which pools and caches fill,
memory, descriptors and threads of every process are looked at each few seconds.
"""

import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np
import psutil

from benchmarks.harness import (
    check_goes_on,
    going,
    quiet,
    report,
    runs_apart,
    steps_of,
    until,
)
from kdlab.config.load import merged
from kdlab.errors import BadInput
from kdlab.report.figures import EmitLine, Figure, Report, figure
from kdlab.run.experiment import load
from kdlab.run.handle.run import Run
from kdlab.run.port_audit import program_of

_MINUTES = 30.0
_LOOKS = 400  # over the whole time
_WARM_UP = 0.2  # of the time
_SAY_S = 60.0
_EXPERIMENT: Mapping[str, object] = {
    "teacher_pool.teachers": 2,
    "train.epochs": 10_000_000,
    "train.schedule": "constant",
    "train.evaluate_every": 1000,
    "train.checkpoint_every_steps": 500,
    "tracking.enabled": True,
}


@dataclass(slots=True)
class SeenOfProcess:
    """Samples of one process: hours since the begin, MB, descriptors and threads."""

    program: str
    looks: list[tuple[float, float, int, int]] = field(default_factory=list)

    def look(self, process: psutil.Process, hours: float) -> None:
        with process.oneshot():
            memory = process.memory_info().rss / 2**20
            descriptors, threads = process.num_fds(), process.num_threads()
        self.looks.append((hours, memory, descriptors, threads))


def measure(overrides: Iterable[str] = (), say: EmitLine = quiet) -> Report:
    """`mb_per_hour/PROGRAM`, and descriptors and threads gained; `minutes=5` is shorter.

    Raises:
        BadInput: an override that is none of its settings.
        RunFailed: the run ended.
    """
    asked = merged(list(overrides))
    minutes = asked.pop("minutes", _MINUTES)
    if asked or not isinstance(minutes, int | float) or not 0.1 <= minutes <= 10_000:
        raise BadInput(
            "bench soak takes minutes=NUMBER, from 0.1 to 10000, and nothing else."
        )
    with runs_apart(), going(load("smoke/served", _EXPERIMENT)) as run:
        seen = _watched(run, 60.0 * minutes, say)
        steps = steps_of(run)[-1].step
    return report("soak", [*_figures(seen.values()), figure("steps", steps, "steps")])


def _watched(run: Run, seconds: float, say: EmitLine) -> dict[int, SeenOfProcess]:
    """Samples by pid, of the processes that lived to the end."""
    until(lambda: run.state != "starting", tick_s=0.2)
    seen: dict[int, SeenOfProcess] = {}
    begin = last_line = time.monotonic()
    while (passed := time.monotonic() - begin) < seconds:
        check_goes_on(run)
        for process in run.folder.family() if passed >= _WARM_UP * seconds else ():
            with suppress(psutil.Error):
                program = program_of(process.cmdline())
                record = seen.setdefault(process.pid, SeenOfProcess(program))
                record.look(process, passed / 3600)
        if begin + passed - last_line >= _SAY_S:
            last_line = begin + passed
            total = sum(record.looks[-1][1] for record in seen.values())
            say(f"{passed / 60:.0f} of {seconds / 60:g} min: {total:.0f} MB in all")
        time.sleep(seconds / _LOOKS)
    alive = {process.pid for process in run.folder.family()}
    return {pid: record for pid, record in seen.items() if pid in alive}


def _figures(seen: Iterable[SeenOfProcess]) -> Iterator[Figure]:
    """Figures of each program; of several processes of one the worst counts."""
    by_program: dict[str, list[np.ndarray]] = defaultdict(list)
    for process in seen:
        if len(process.looks) > 2:
            name = process.program.removeprefix("kdlab.")
            by_program[name].append(np.array(process.looks).T)
    for program, processes in sorted(by_program.items()):
        slopes = [slope(hours, memory) for hours, memory, _, _ in processes]
        yield figure(f"mb_per_hour/{program}", max(slopes), "MB/h")
        for row, what in ((2, "descriptors"), (3, "threads")):
            more = [_more(columns[row]) for columns in processes]
            yield figure(f"more_{what}/{program}", max(more), what)
        yield figure(f"rss/{program}", max(columns[1][-1] for columns in processes), "MB")


def slope(at: Sequence[float], values: Sequence[float]) -> float:
    """Per unit of `at`: the median of the slopes between all pairs (Theil and Sen)."""
    x, y = np.asarray(at), np.asarray(values)
    first, second = np.triu_indices(len(x), k=1)
    return float(np.median((y[second] - y[first]) / (x[second] - x[first])))


def _more(counts: Sequence[float]) -> float:
    """Median of the last fifth minus that of the first."""
    fifth = max(1, len(counts) // 5)
    return float(np.median(counts[-fifth:]) - np.median(counts[:fifth]))
