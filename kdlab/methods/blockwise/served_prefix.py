"""The teacher's first blocks from a pool: their outputs come with the images."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod
from statistics import median
from typing import Annotated, Literal

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor

from kdlab.config import Fault, Range
from kdlab.config.spec import Spec
from kdlab.data.samples import PlannedSamples, RankPart
from kdlab.errors import KdlabError
from kdlab.models.model import Normalised
from kdlab.papers.pipe_bd.served_prefix import PoolSupply
from kdlab.papers.pipe_bd.stages import Stage
from kdlab.soft_labels.source import Batch, SoftLabelSource, SourceSpec
from kdlab.train.position import Start

MEASURED = 24  # batches taken from a pool to know its rate
_UNCOUNTED = 8  # of them, which may have lain ready


@dataclass(frozen=True, kw_only=True)
class ServedPrefix(Spec):
    """The teacher's first blocks from `teacher_pool`, instead of from the devices.

    blocks: how many.
    source: how they are asked for; a cluster/served with full or half replies.
    serve: `when_it_pays` measures what the pool delivers and lets the planner decide.
    """

    blocks: Annotated[int, Range(ge=1)]
    source: SourceSpec
    serve: Literal["when_it_pays", "always"] = "when_it_pays"

    def cross_faults(self) -> Iterator[Fault]:
        yield from (fault.under("source") for fault in self.source.output_faults())


Open = Callable[[PlannedSamples, Start], SoftLabelSource]
"""Opens a source of these samples."""


def width_of(shapes: Sequence[Sequence[int]]) -> int:
    """Numbers per row of outputs of these shapes."""
    return sum(map(prod, shapes))


class PrefixLoader:
    """Views with the outputs of the first teacher blocks: a `Loader` of the first stage.

    `device` is the number of this one in the stage, `shapes` are of one row of each served
    output, and `opened` opens the source of this device's rows.
    """

    def __init__(
        self,
        samples: PlannedSamples,
        stage: Stage,
        device: int,
        model: Normalised,
        shapes: Sequence[Sequence[int]],
        opened: Open,
    ) -> None:
        self.samples = samples
        self.memory = next(model.parameters()).device
        self.mean, self.std = model.mean.to(self.memory), model.std.to(self.memory)
        self.shapes = [tuple(shape) for shape in shapes]
        own = RankPart(stage.devices.index(device), tuple(map(float, stage.rows)))
        self._own = replace(samples, part=own)
        self._open = opened
        self.source: SoftLabelSource | None = None  # from the first epoch on
        self._batches: Iterator[Batch] = iter(())
        self._place = (-1, 0)  # epoch and batch that it gives next
        self.epoch = self.first = 0
        self.ids: list[NDArray[np.int64]] = []
        self.outputs: list[Tensor] = []

    def begin(self, epoch: int, first: int) -> None:
        """An epoch, from its batch `first` on; steps count from there."""
        self.epoch, self.first = epoch, first
        self.ids = self.samples.batches(epoch)[first:]
        done = list(range(first))
        if self.source is None:
            self.source = self._open(self._own, {"epoch": epoch, "done": done})
        if self._place != (epoch, first):  # else it goes on after a pause
            self._batches = self.source.epoch(epoch, done)
            self._place = epoch, first

    def __call__(self, step: int, start: int, stop: int) -> Tensor:
        """(stop - start, C, H, W) normalised; `outputs` are then of these rows.

        Raises:
            TeacherLost, ClusterError: as the source does.
        """
        batch = next(self._batches)
        self._place = self.epoch, self.first + step + 1
        if not np.array_equal(batch.ids, self.ids[step][start:stop]):
            raise KdlabError(
                f"The pool delivered other rows than batch {self.first + step} of epoch "
                f"{self.epoch} has. This is a defect of kdlab."
            )
        assert batch.soft is not None
        self.outputs = split(batch.soft, self.shapes, self.memory)
        return (batch.views.to(self.memory).float() - self.mean) / self.std

    def served(self) -> Sequence[Tensor]:
        """Outputs of the teacher's first blocks, for the rows that were loaded last."""
        return self.outputs

    def close(self) -> None:
        if self.source is not None:
            self.source.close()


def split(
    soft: Tensor, shapes: Sequence[tuple[int, ...]], memory: torch.device
) -> list[Tensor]:
    """(N, D) as one tensor for each shape, in memory of its own."""
    parts = soft.split([prod(shape) for shape in shapes], dim=1)
    return [
        part.to(memory).clone(memory_format=torch.contiguous_format).view(-1, *shape)
        for part, shape in zip(parts, shapes, strict=True)
    ]


def measured_supply(
    source: SoftLabelSource,
    samples: PlannedSamples,
    shapes: Sequence[Sequence[int]],
    device: torch.device,
) -> tuple[float, float]:
    """(rows per second, seconds to take over a batch) of a source that was just opened."""
    served = [tuple(shape) for shape in shapes]
    every = (b for epoch in range(samples.plan.epochs) for b in source.epoch(epoch, ()))
    rows, taken, begin = 0, list[float](), time.perf_counter()
    for number, batch in enumerate(every):
        if number == _UNCOUNTED:
            rows, begin = 0, time.perf_counter()
        now = time.perf_counter()
        assert batch.soft is not None
        split(batch.soft, served, device)
        batch.views.to(device).float()
        taken.append(time.perf_counter() - now)
        rows += len(batch.ids)
        if number + 1 == MEASURED:
            break
    return rows / max(1e-9, time.perf_counter() - begin), median(taken)


def together(
    measure: Callable[[], tuple[float, float]] | None, work: Callable[[], None], blocks: int
) -> PoolSupply | None:
    """Rank 0 measures while all others work, until it has; every rank must call this.

    What a pool delivers beside busy devices is less than beside idle ones, where they share
    processors or memory. `measure` is rank 0's; `work` is a step of training.
    """
    done = torch.zeros(1)
    if measure is None:
        # In a thread: gloo's receives do not say that they are complete.
        waiting = threading.Thread(target=dist.recv, args=(done, 0), daemon=True)
        waiting.start()
        while waiting.is_alive():
            work()
        return None
    try:
        rate, take_s = measure()
    finally:
        for rank in range(1, dist.get_world_size()):
            dist.send(done, rank)
    return PoolSupply(blocks, rate, take_s)
