"""Several trainings alive at once, advanced in turns: noise meets all of them alike.

A shared machine drifts by tens of percent within seconds. So each variant trains a slice
of some tenths of a second, then the next one, forth and back (A B C C B A), and a ratio is
taken within each such round. The first part of a slice is not timed: what had gathered
in buffers meanwhile is used up there, so a served variant is timed at its steady pace.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Protocol

import psutil

from kdlab.report.figures import Figure, figure
from kdlab.soft_labels.source import SoftLabelSource
from kdlab.train.student import StudentLoop

SLICE_MS = 700.0  # timed
BUFFER = 16  # batches of ut: a slice's warm-up uses up more than that and the slots


@dataclass(slots=True)
class TimedTraining:
    """One training that can be advanced by some steps.

    beside: entered for each of its slices, such as a busy neighbour that runs meanwhile.
    helper: a process whose processor time during its slices is added up.
    """

    name: str
    loop: StudentLoop
    source: SoftLabelSource
    beside: Callable[[], AbstractContextManager[None]] = nullcontext
    helper: psutil.Process | None = None
    helper_cpu_s: float = 0.0
    source_cpu_s: float = 0.0  # processor time of this process inside the source
    source_s: float = 0.0  # time inside the source: that, and waiting
    steps: int = 0
    rates: list[float] = field(default_factory=list)  # steps/s, one per round
    _batches: Iterator[None] | None = None

    def advance(self, steps: int) -> None:
        if self._batches is None:
            self._batches = self._train()
        before = cpu_seconds(self.helper)
        for _ in range(steps):
            next(self._batches)
        self.helper_cpu_s += cpu_seconds(self.helper) - before

    def _train(self) -> Iterator[None]:
        loop = self.loop
        loop.source = self.source
        loop.model.train()
        while True:
            sizes = loop.job.samples.plan.sizes(loop.position.epoch)
            loop.begin_epoch()
            batches = iter(self.source.epoch(loop.position.epoch, ()))
            for _ in sizes:
                begin, cpu = time.perf_counter(), time.thread_time()
                batch = next(batches)
                self.source_cpu_s += time.thread_time() - cpu
                self.source_s += time.perf_counter() - begin
                loop.one_batch(batch, sizes[batch.index])
                self.steps += 1
                yield
            loop.lineage.finish_epoch()
            loop.position.epoch += 1
            loop.position.done.clear()


class Turn(Protocol):
    """What takes part in a comparison: something that can be advanced by some steps."""

    @property
    def name(self) -> str: ...
    @property
    def beside(self) -> Callable[[], AbstractContextManager[None]]: ...
    @property
    def rates(self) -> list[float]: ...
    def advance(self, steps: int) -> None: ...


def compare(
    variants: Sequence[Turn],
    *,
    rounds: int,
    steps: int,
    warm_up: int,
    say: Callable[[str], None] = lambda line: None,
) -> None:
    """Fill each variant's `rates`, one per round of two slices.

    Args:
        variants: to be compared.
        rounds: of two slices each, in opposite orders.
        steps: timed per slice.
        warm_up: steps before, not timed.
        say: progress.
    """
    for variant in variants:
        variant.advance(warm_up)
    for number in range(rounds):
        seconds = dict.fromkeys([v.name for v in variants], 0.0)
        for variant in [*variants, *reversed(variants)]:
            with variant.beside():
                variant.advance(warm_up)
                begin = time.perf_counter()
                variant.advance(steps)
                seconds[variant.name] += time.perf_counter() - begin
        for variant in variants:
            variant.rates.append(2 * steps / seconds[variant.name])
        shown = ", ".join(f"{v.name} {1000 / v.rates[-1]:.2f}" for v in variants)
        say(f"round {number + 1}/{rounds}: ms per step: {shown}")


def seconds_of(variant: Turn, steps: int) -> float:
    """For each of so many steps, now."""
    begin = time.perf_counter()
    variant.advance(steps)
    return (time.perf_counter() - begin) / steps


def ratios(one: Turn, other: Turn) -> list[float]:
    """Speed of `one` over that of `other`, round by round."""
    return [a / b for a, b in zip(one.rates, other.rates, strict=True)]


def worst_of(
    figures: list[Figure],
    name: str,
    worst: Callable[..., Figure],
    goal: str | None,
) -> Figure:
    """The worst of all figures below that name."""
    found = worst(
        (f for f in figures if f["name"].startswith(f"{name}/")), key=lambda f: f["value"]
    )
    return figure(name, [found["low"], found["value"], found["high"]], found["unit"], goal)


def cpu_seconds(process: psutil.Process | None) -> float:
    """Processor time a process has used so far; nothing for none."""
    if process is None:
        return 0.0
    times = process.cpu_times()
    return float(times.user + times.system)
