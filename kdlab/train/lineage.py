"""Counts of the samples that the surviving weights were trained on, one by one.

Counts are in the checkpoint, so after a roll-back they are those of the lineage that continues.
Steps that were undone are counted separately: a small memory-mapped file survives a SIGKILL and
has the last position.
"""

import struct
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kdlab.codec import Count
from kdlab.config.home import mapped

_ONE = np.int32(1)  # int32 as the counts: three times as fast as a Python integer
# Batches counted at once: between two steps any call of NumPy takes 40 us, since nothing of it is
# left in the processor's caches.
_BATCHES = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class LineageCounts:
    """Sample counts of a `Lineage`."""

    seen: Count
    lost: Count
    repeated: Count
    rolled_back: Count


@dataclass(slots=True)
class Lineage:
    """Uses of each training sample in this epoch, and sums over finished epochs."""

    counted: NDArray[np.int32]  # uses by row of the data set, without `_since`
    ids: NDArray[np.int64]  # the training ids
    seen: int = 0  # samples trained on, this epoch included
    lost: int = 0  # of finished epochs: never used
    repeated: int = 0  # of finished epochs: uses beyond the first
    rolled_back: int = 0  # trained on, then undone by a resume
    _since: list[bytes] = field(default_factory=list)  # ids that are not counted yet

    @classmethod
    def start(cls, rows: int, ids: NDArray[np.int64]) -> "Lineage":
        return cls(np.zeros(rows, np.int32), ids)

    def trained(self, ids: NDArray[np.int64], of_rows: int | None = None) -> None:
        """Count the ids of this rank; `seen` counts the whole batch of `of_rows`."""
        self._since.append(ids.tobytes())
        if len(self._since) >= _BATCHES:
            self._count()
        self.seen += len(ids) if of_rows is None else of_rows

    @property
    def counts(self) -> NDArray[np.int32]:
        """Uses in this epoch, by row of the data set."""
        self._count()
        return self.counted

    def _count(self) -> None:
        if not self._since:
            return
        ids = np.frombuffer(b"".join(self._since), np.int64)
        np.add.at(self.counted, ids % len(self.counted), _ONE)  # of any copy of a row
        self._since.clear()

    def finish_epoch(
        self,
        counts: NDArray[np.int32] | None = None,
        planned: NDArray[np.int64] | None = None,
    ) -> None:
        """Add up the lost and repeated samples of an epoch.

        Args:
            counts: over all ranks; None takes those of this rank.
            planned: ids of the epoch; None is each training id once.
        """
        counts = self.counts if counts is None else counts
        rows = self.ids if planned is None else planned % len(counts)
        # A use of a row that was not planned counts as repeated.
        over = counts - np.bincount(rows, minlength=len(counts))
        self.lost -= int(np.minimum(over, 0).sum())
        self.repeated += int(np.maximum(over, 0).sum())
        self.counts[:] = 0

    def totals(self) -> LineageCounts:
        return LineageCounts(
            seen=self.seen,
            lost=self.lost,
            repeated=self.repeated,
            rolled_back=self.rolled_back,
        )

    def restore(self, counts: NDArray[np.int32], totals: LineageCounts) -> None:
        self.counts[:] = counts
        self.seen, self.lost = totals.seen, totals.lost
        self.repeated, self.rolled_back = totals.repeated, totals.rolled_back


class Odometer:
    """Position of a training and the amount undone, in a file that outlives its process.

    The page cache keeps it when the process is killed; writing needs no system call.
    """

    def __init__(self, path: Path) -> None:
        self._map = mapped(path, 16)

    @property
    def value(self) -> int:
        """Samples trained on in the current lineage; for a local model, steps."""
        return int(struct.unpack_from("<q", self._map, 0)[0])

    @value.setter
    def value(self, samples: int) -> None:
        struct.pack_into("<q", self._map, 0, samples)

    def roll_back(self, samples: int) -> int:
        """Go back to `samples`; return the total ever undone, this included."""
        undone = self.undone + max(0, self.value - samples)
        struct.pack_into("<qq", self._map, 0, samples, undone)
        return undone

    @property
    def undone(self) -> int:
        """Total ever undone."""
        return int(struct.unpack_from("<q", self._map, 8)[0])

    def close(self) -> None:
        self._map.close()
