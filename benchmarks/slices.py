"""Several trainings alive at once, advanced in turns: noise meets all of them alike.

A shared machine drifts by tens of percent within seconds. So each variant trains a slice
of some tenths of a second, then the next one, forth and back (A B C C B A), and a ratio is
taken within each such round. The first part of a slice is not timed: what had gathered
in buffers meanwhile is used up there, so a served variant is timed at its steady pace.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial

import psutil

from benchmarks.harness import in_turns, timed
from kdlab.report.figures import EmitLine, Figure, figure, over
from kdlab.soft_labels.source import SoftLabelSource
from kdlab.train.student import StudentLoop

SLICE_MS = 700.0  # timed
_IN_A_ROW = 4  # steps of a turn
BUFFER = 16  # batches of ut: a slice's warm-up uses up more than that and the slots


@dataclass(slots=True, kw_only=True)
class Turn(ABC):
    """One side of a comparison: a training that can be advanced by some steps.

    beside: entered for each of its slices, such as a busy neighbour that runs meanwhile.
    """

    name: str
    beside: Callable[[], AbstractContextManager[None]] = nullcontext
    rates: list[float] = field(default_factory=list)  # steps/s, one per round
    _batches: Iterator[None] | None = None

    def advance(self, steps: int) -> None:
        if self._batches is None:
            self._batches = self.train()
        for _ in range(steps):
            next(self._batches)

    @abstractmethod
    def train(self) -> Iterator[None]:
        """Train a step for each value taken, without end."""


@dataclass(slots=True, kw_only=True)
class TimedTraining(Turn):
    """A training of kdlab's.

    helper: a process whose processor time during its slices is added up.
    """

    loop: StudentLoop
    source: SoftLabelSource
    helper: psutil.Process | None = None
    helper_cpu_s: float = 0.0
    source_cpu_s: float = 0.0  # processor time of this process inside the source
    steps: int = 0

    def advance(self, steps: int) -> None:
        before = cpu_seconds(self.helper)
        Turn.advance(self, steps)
        self.helper_cpu_s += cpu_seconds(self.helper) - before

    def train(self) -> Iterator[None]:
        loop = self.loop
        loop.source = self.source
        loop.model.train()
        while True:
            sizes = loop.job.samples.plan.sizes(loop.position.epoch)
            loop.begin_epoch()
            batches = iter(self.source.epoch(loop.position.epoch, ()))
            for _ in sizes:
                cpu = time.thread_time()
                batch = next(batches)
                self.source_cpu_s += time.thread_time() - cpu
                loop.one_batch(batch, sizes[batch.index])
                self.steps += 1
                yield
            loop.lineage.finish_epoch()
            loop.position.epoch += 1
            loop.position.done.clear()


def compare(
    variants: Sequence[Turn], *, rounds: int, steps: int, warm_up: int, say: EmitLine
) -> None:
    """Fill each variant's `rates`, one per round of two slices in opposite orders.

    In each slice `warm_up` steps are not timed, and `steps` are.
    """
    for variant in variants:
        variant.advance(warm_up)
    works = {v.name: partial(_slice_ms, v, steps, warm_up) for v in variants}
    times = in_turns(works, 2 * rounds, say, "ms per step")
    for variant in variants:
        ms = times[variant.name]
        variant.rates += [2000 / sum(ms[i : i + 2]) for i in range(0, 2 * rounds, 2)]


def _slice_ms(variant: Turn, steps: int, warm_up: int) -> float:
    with variant.beside():
        variant.advance(warm_up)
        return 1000 * seconds_of(variant, steps)


def step_by_step(variants: Sequence[Turn], *, rounds: int, steps: int) -> None:
    """Fill each variant's `rates` anew: a few steps each in turn, `steps` of each a round.

    A ratio is good to a percent, since what slows the machine for a moment meets neighbours. It
    says what a step costs in the student's own process: soft labels have the steps of the
    others to arrive in, so waiting for them shows in slices alone.
    """
    order = list(variants)
    for variant in order:
        variant.rates.clear()
    for _ in range(rounds):
        seconds = dict.fromkeys([v.name for v in order], 0.0)
        for _ in range(steps // _IN_A_ROW):
            for variant in order:
                seconds[variant.name] += seconds_of(variant, _IN_A_ROW)
            order.append(order.pop(0))  # nobody follows itself, with a warm cache
        for variant in order:
            variant.rates.append(steps // _IN_A_ROW / seconds[variant.name])


def seconds_of(variant: Turn, steps: int) -> float:
    """Advance by so many steps and return the seconds per step."""
    return timed(partial(variant.advance, steps)) / steps


def share_of(baseline: Turn, steps: int, seconds: Callable[[], float]) -> float:
    """Return the rate at so many seconds per step over `baseline`'s, measured before and after."""
    before, took = seconds_of(baseline, steps), seconds()
    return 0.5 * (before + seconds_of(baseline, steps)) / took


def ratios(variant: Turn, reference: Turn) -> list[float]:
    """Return the speed of `variant` over that of `reference`, round by round."""
    return over(variant.rates, reference.rates)


def worst_of(figures: list[Figure], name: str, worst: Callable[..., Figure]) -> Figure:
    """The worst of all figures below that name."""
    below = (f for f in figures if f["name"].startswith(f"{name}/"))
    row = worst(below, key=lambda f: f["value"])
    return figure(name, [row["low"], row["value"], row["high"]], row["unit"])


def cpu_seconds(process: psutil.Process | None) -> float:
    """Processor time a process has used so far; 0 for None."""
    if process is None:
        return 0.0
    times = process.cpu_times()
    return float(times.user + times.system)
