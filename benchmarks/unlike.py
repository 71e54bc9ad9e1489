"""`kdlab bench unlike`: students of unlike speed in one synchronous training.

The paper reports it as its open problem (EDL-Dist, journal section 5): a V100 and a P4 as students
are 44.6 % slower than the V100 alone, and 49 % with EDL-Dist, since ring all-reduce waits for
the slower one. Here one of two ranks gets the processor for 39 % of the time, as 5.5 TFLOPS are of
14. With equal shares of a batch it sets the pace; with measured shares it gets fewer rows.
"""

import math
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from statistics import median

from benchmarks.harness import going, in_turns, quiet, report, runs_apart, steps_of, until
from kdlab.events.log import select
from kdlab.events.ranks import BatchShared, GenerationStarted
from kdlab.report.figures import EmitLine, Figure, Report, at, figure, over
from kdlab.run.experiment import load
from kdlab.run.handle.run import Run

SPEED = 5.5 / 14.0  # of the slower rank: TFLOPS of a P4 over those of a V100
_PERIOD_S = 0.003  # short beside a step: a slower device is not away, it is slow
_FIRST, _TIMED_STEPS = 20, 60
_BASE: Mapping[str, object] = {
    "data": {"type": "data/synthetic", "samples": 20_000, "size": 32, "channels": 1},
    "student": {"type": "models/patch_net", "patch": 4, "depth": 12, "width": 128},
    "train.batch": 128,
    "train.epochs": 1000,
    "train.log_every_steps": 5,
    "tracking.enabled": False,
}
_SERVED: Mapping[str, object] = {
    "soft_labels": {"type": "cluster/served", "lt": 2048, "ut": 8192},
    "teacher_pool": {"type": "cluster/emulated_pool", "teachers": 4, "t_t": 100_000},
    "teacher": {"use": "teachers/digits_tiny"},
    "compare": [],
}


def measure(repeats: int = 2, say: EmitLine = quiet) -> Report:
    """`over_fast_alone/SHARES` with and without soft labels; 1 is the faster rank alone.

    `slow_rank_rows/SHARES` is the slower rank's part of each batch.
    """
    figures: list[Figure] = []
    for source, more in (("n_training", {}), ("served", _SERVED)):
        rows: dict[str, list[float]] = {name: [] for name in ("alone", "equal", "measured")}
        works = {
            name: partial(_trained, name, {**_BASE, **more}, slow_rows)
            for name, slow_rows in rows.items()
        }
        say(source)
        rates = in_turns(works, repeats, say, "samples/s")
        for name in ("equal", "measured"):
            over_alone = over(rates[name], rates["alone"])
            both = [ratio / (1 + SPEED) for ratio in over_alone]
            figures += at(
                f"{name}/{source}",
                figure("over_fast_alone", over_alone, "ratio"),
                figure("of_both_together", both, "ratio"),
                figure("slow_rank_rows", rows[name], "of a batch"),
            )
    return report("unlike", figures)


def _trained(shares: str, overrides: dict[str, object], slow_rows: list[float]) -> float:
    """Samples/s of a run, once it trains; the second rank's part of a batch joins `slow_rows`."""
    single = shares == "alone"
    if not single:
        ranks = {"type": "train/aggregation/all_reduce", "ranks": 2, "shares": shares}
        overrides["aggregation"] = ranks | {"standby": 0, "hang_s": 60}
    with runs_apart(), going(load("smoke/none", overrides)) as run:
        with nullcontext() if single else _slowed(run):
            rate = _steady(run)
        if not single:
            *_, shared = select(run.folder.events, BatchShared)
            slow_rows.append(shared.rows[1] / sum(shared.rows))
    return rate


def _steady(run: Run) -> float:
    """Median samples/s of `_TIMED_STEPS` steps after the first ones."""
    rates = list[float]()

    def enough() -> bool:
        steps = steps_of(run)
        first = next((e.step for e in steps if e.step >= _FIRST), math.inf)
        rates[:] = [e.samples_per_second for e in steps if e.step > first]
        return bool(steps) and steps[-1].step - first >= _TIMED_STEPS

    missing = f"run {run.id} has not trained {_TIMED_STEPS} steps. Log: {run.folder.log}"
    until(enough, missing=missing, tick_s=0.2)
    return median(rates)


def _slowed(run: Run) -> AbstractContextManager[None]:
    """Rank 1 has the processor for its share of the time, as soon as there is a group."""

    def second() -> int | None:
        # Logged before the ranks measure how fast they are.
        first = next(select(run.folder.events, GenerationStarted), None)
        return None if first is None else list(first.pids().values())[1]

    return held_back(second, SPEED, _PERIOD_S)


@contextmanager
def held_back(
    find: Callable[[], int | None], share: float, period_s: float
) -> Iterator[None]:
    """Let a process run for a share of the time only, once `find` gives its pid."""
    over = threading.Event()

    def hold() -> None:
        while (pid := find()) is None and not over.is_set():
            over.wait(0.01)  # between looks
        while pid is not None and not over.is_set():
            try:
                os.kill(pid, signal.SIGSTOP)
                over.wait(period_s * (1 - share))
                os.kill(pid, signal.SIGCONT)
            except ProcessLookupError:
                return  # it is over
            over.wait(period_s * share)

    thread = threading.Thread(target=hold, name="held-back", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
