"""Stream of a worker's batches: the same in training, in compressions and after a resume."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kdlab.data.samples import PlannedSamples
from kdlab.soft_labels.source import Batch, SoftLabelSource
from kdlab.train.position import Start


@dataclass(frozen=True, slots=True)
class BatchPlace:
    """Position and ids of a batch in the plan."""

    epoch: int
    index: int
    ids: NDArray[np.int64]


class Stream:
    """Batches of all epochs in order, after the first `taken` of them."""

    def __init__(self, samples: PlannedSamples, taken: int = 0) -> None:
        self.samples, self.taken = samples, taken
        self._epoch = -1
        self._batches: list[NDArray[np.int64]] = []
        self._source: SoftLabelSource | None = None
        self._from_source: Iterator[Batch] = iter(())
        self._next = -1  # number of the batch that the source yields next

    def ahead(self, count: int) -> list[BatchPlace]:
        """Return the next batches' places; take none."""
        return [self._place(self.taken + k) for k in range(count)]

    def _place(self, number: int) -> BatchPlace:
        epoch, index = divmod(number, self.samples.plan.batches)
        if epoch != self._epoch:
            self._epoch, self._batches = epoch, self.samples.batches(epoch)
        return BatchPlace(epoch, index, self._batches[index])

    def start(self) -> Start:
        """Return the position for a source that begins here."""
        epoch, index = divmod(self.taken, self.samples.plan.batches)
        return {"epoch": epoch, "done": list(range(index))}

    def take(self, source: SoftLabelSource, count: int) -> Iterator[Batch]:
        """Take the next batches from a source, in the order of the plan."""
        if source is not self._source or self._next != self.taken:
            self._source, self._next = source, -1
        for _ in range(count):
            epoch, index = divmod(self.taken, self.samples.plan.batches)
            if self._next != self.taken or index == 0:
                self._from_source = source.epoch(epoch, range(index))
            batch = next(self._from_source)
            self.taken += 1
            self._next = self.taken
            yield batch
