"""`kdlab bench soak`: whether a served run that goes on for long stays as large as it is.

A student learns from real small teachers in processes of their own, with tracking and
checkpoints as every run has them. After a fifth of the time, in which pools and caches fill,
memory, descriptors and threads of every process are looked at each few seconds.
"""

import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np
import psutil

from benchmarks.harness import going, quiet, report, runs_apart, until
from kdlab.config.load import merged
from kdlab.errors import BadInput, KdlabError
from kdlab.events.log import select
from kdlab.events.training import StepLogged
from kdlab.report.figures import Figure, Report, Say, figure
from kdlab.run.experiment import load
from kdlab.run.handle.run import Run
from kdlab.run.reach import program_of

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
    """What was seen of one process."""

    program: str
    hours: list[float] = field(default_factory=list)  # since the begin
    rss_mb: list[float] = field(default_factory=list)
    descriptors: list[int] = field(default_factory=list)
    threads: list[int] = field(default_factory=list)


def measure(overrides: Iterable[str] = (), say: Say = quiet) -> Report:
    """`mb_per_hour/PROGRAM` and what it has more of at the end; `minutes=5` is shorter.

    Raises:
        BadInput: an override that is none of its settings.
        KdlabError: the run ended.
    """
    asked = merged(list(overrides))
    minutes = asked.pop("minutes", _MINUTES)
    if asked or not isinstance(minutes, int | float) or not 0.1 <= minutes <= 10_000:
        raise BadInput(
            "bench soak takes minutes=NUMBER, from 0.1 to 10000, and nothing else."
        )
    with runs_apart(), going(load("smoke/served", _EXPERIMENT)) as run:
        seen = _watched(run, 60.0 * minutes, say)
        *_, last = select(run.folder.events, StepLogged)
    figures = [*_figures(seen.values()), figure("steps", last.step, "steps")]
    return report("soak", figures)


def _watched(run: Run, seconds: float, say: Say) -> dict[int, SeenOfProcess]:
    """By process, of those that lived to the end."""
    until(lambda: run.state != "starting", tick_s=0.2)
    seen: dict[int, SeenOfProcess] = {}
    begin = said = time.monotonic()
    while (now := time.monotonic()) - begin < seconds:
        if run.state != "running":
            raise KdlabError(f"Run {run.id} is {run.state}: {run.status.error}")
        processes = list(run.folder.family())
        if now - begin >= _WARM_UP * seconds:
            for process in processes:
                with suppress(psutil.Error):
                    _look(seen, process, (now - begin) / 3600)
        if now - said >= _SAY_S:
            said = now
            total = sum(looks.rss_mb[-1] for looks in seen.values())
            say(f"{(now - begin) / 60:.0f} of {seconds / 60:g} min: {total:.0f} MB in all")
        time.sleep(seconds / _LOOKS)
    alive = {process.pid for process in run.folder.family()}
    return {pid: looks for pid, looks in seen.items() if pid in alive}


def _look(seen: dict[int, SeenOfProcess], process: psutil.Process, hours: float) -> None:
    with process.oneshot():
        looks = seen.setdefault(process.pid, SeenOfProcess(program_of(process.cmdline())))
        memory = process.memory_info().rss / 2**20
        descriptors, threads = process.num_fds(), process.num_threads()
    looks.hours.append(hours)
    looks.rss_mb.append(memory)
    looks.descriptors.append(descriptors)
    looks.threads.append(threads)


def _figures(seen: Iterable[SeenOfProcess]) -> Iterator[Figure]:
    """Figures of each program; of several processes of one the worst counts."""
    by_program: dict[str, list[SeenOfProcess]] = defaultdict(list)
    for looks in seen:
        if len(looks.hours) > 2:
            by_program[looks.program.removeprefix("kdlab.")].append(looks)
    for program, processes in sorted(by_program.items()):
        slopes = [slope(looks.hours, looks.rss_mb) for looks in processes]
        yield figure(f"mb_per_hour/{program}", max(slopes), "MB/h")
        for what in ("descriptors", "threads"):
            more = [_more(getattr(looks, what)) for looks in processes]
            yield figure(f"more_{what}/{program}", max(more), what)
        sizes = [looks.rss_mb[-1] for looks in processes]
        yield figure(f"rss/{program}", max(sizes), "MB")


def slope(at: list[float], values: list[float]) -> float:
    """Per unit of `at`: the median of the slopes between all pairs (Theil and Sen)."""
    x, y = np.asarray(at), np.asarray(values)
    first, second = np.triu_indices(len(x), k=1)
    return float(np.median((y[second] - y[first]) / (x[second] - x[first])))


def _more(counts: list[int]) -> float:
    """Median of the last fifth over that of the first."""
    fifth = max(1, len(counts) // 5)
    return float(np.median(counts[-fifth:]) - np.median(counts[:fifth]))
