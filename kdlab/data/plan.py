"""Which samples make up which batch: a function of (seed, epoch), the same everywhere."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kdlab.data.counter_random import permutation


@dataclass(frozen=True, slots=True)
class Plan:
    """The batches of a run. `ids` are rows of the data set, here those of `train`."""

    ids: NDArray[np.int64]
    batch: int
    seed: int
    epochs: int

    @property
    def batches(self) -> int:
        """Batches per epoch. All samples are used; the last batch may be smaller."""
        full, rest = divmod(len(self.ids), self.batch)
        # Batch norm cannot train on one sample: a rest of 1 joins the batch before it.
        return full + (1 if rest > 1 or (rest == 1 and full == 0) else 0)

    def epoch(self, epoch: int) -> list[NDArray[np.int64]]:
        """Sample ids batch by batch; every id exactly once."""
        order = permutation(self.seed, epoch, self.ids)
        cuts = [self.batch * i for i in range(1, self.batches)]
        return np.split(order, cuts)

    @property
    def largest(self) -> int:
        """Samples in the largest batch."""
        rest = len(self.ids) % self.batch
        return min(len(self.ids), self.batch + (1 if rest == 1 else 0))
