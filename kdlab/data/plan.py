"""Batches of an epoch as a function of (seed, epoch), equal in every process."""

from dataclasses import dataclass, fields
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from kdlab.data.counter_random import permutation
from kdlab.data.sampling import Sampler


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """The batches of a run. `ids` are rows of the data set, here those of `train`.

    batch: samples of a batch, over all ranks of a student group.
    smallest: a rest with fewer samples is added to the batch before it: batch norm cannot train
        on one sample, and every rank of a group needs some.
    sampler: chooses the ids of an epoch among these; None takes each once.
    first_epoch, first_sample: where training began or resumed after batches of another plan:
        batches of that epoch are cut from its rest.
    """

    ids: NDArray[np.int64]
    batch: int
    seed: int
    epochs: int
    smallest: int = 2
    first_epoch: int = 0
    first_sample: int = 0
    sampler: Sampler | None = None

    @property
    def batches(self) -> int:
        """Batches of a full epoch. All samples are used; the last may be smaller."""
        return len(_sizes(len(self.ids), self.batch, self.smallest))

    def sizes(self, epoch: int) -> tuple[int, ...]:
        """Samples in each batch of an epoch."""
        return _sizes(len(self.ids) - self._skipped(epoch), self.batch, self.smallest)

    def epoch(self, epoch: int) -> list[NDArray[np.int64]]:
        """Sample ids batch by batch; every id exactly once."""
        order = self.order(epoch)[self._skipped(epoch) :]
        sizes = self.sizes(epoch)
        return np.split(order, np.cumsum(sizes)[:-1]) if sizes else []

    def order(self, epoch: int) -> NDArray[np.int64]:
        """Ids of a full epoch; a sampler's ids include the copy of the row."""
        if self.sampler is not None:
            return self.sampler.epoch(self.seed, epoch, self.ids)
        return permutation(self.seed, epoch, self.ids)

    @property
    def largest(self) -> int:
        """Samples in the largest batch."""
        return max(_sizes(len(self.ids), self.batch, self.smallest))

    def facts(self) -> dict[str, int]:
        """Fields except ids and sampler, for checkpoints and other processes."""
        apart = ("ids", "sampler")
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name not in apart}

    def _skipped(self, epoch: int) -> int:
        return self.first_sample if epoch == self.first_epoch else 0


@lru_cache(maxsize=64)  # called for every part that is sent
def _sizes(count: int, batch: int, smallest: int) -> tuple[int, ...]:
    full, rest = divmod(count, batch)
    sizes = [batch] * full + ([rest] if rest else [])
    if 0 < rest < smallest and full:
        sizes[-2:] = [batch + rest]
    return tuple(sizes)
