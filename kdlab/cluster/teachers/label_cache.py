"""Cache of a teacher's answers, for students that ask for the same samples and views.

Views are functions of sample and epoch, so the trials of a sweep, students of several seeds and a
resumed run ask for the same again. New answers replace the oldest ones.
"""

import threading

import numpy as np
from numpy.typing import NDArray

_FREE = -1


class LabelCache:
    """A ring of answers; safe for several threads.

    Args:
        samples: of the data set, with those drawn more than once.
        classes: numbers of an answer.
        most_bytes: of all answers, without four bytes for each sample and epoch.
    """

    def __init__(self, samples: int, classes: int, most_bytes: int) -> None:
        self._samples, self._classes = samples, classes
        self.capacity = most_bytes // (4 * classes + 8)  # answers
        self._lock = threading.Lock()
        self.asked, self.hits = 0, 0  # samples so far; counted by the caller
        self.clear()

    def clear(self) -> None:
        """Drop all answers, because another engine computes from now on."""
        with self._lock:
            # The system provides memory of zeros only when it is written to.
            self._rows = np.zeros((self.capacity, self._classes), np.float32)
            self._ids = np.zeros(self.capacity, np.int32)  # sample of each row
            # Epoch of each row plus one; 0: never written.
            self._epochs = np.zeros(self.capacity, np.int32)
            self._places: dict[int, NDArray[np.int32]] = {}  # epoch -> row of each sample
            self._count: dict[int, int] = {}  # epoch -> rows
            self._next = 0  # row to write next

    def find(
        self, epoch: int, ids: NDArray[np.int64]
    ) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        """(N, classes) answers and (N,) whether each is cached; the other rows are arbitrary."""
        with self._lock:
            places = self._places.get(epoch)
            if places is None:
                shape = (len(ids), self._classes)
                return np.empty(shape, np.float32), np.zeros(len(ids), np.bool_)
            at = places[ids]
            return self._rows[at], at != _FREE

    def put(self, epoch: int, ids: NDArray[np.int64], answers: NDArray[np.float32]) -> None:
        """Store the (N, classes) answers to (N,) samples of an epoch."""
        with self._lock:
            places = self._places.get(epoch)
            if places is None:
                places = np.full(self._samples, _FREE, np.int32)
            ids, first = np.unique(ids, return_index=True)
            again = np.flatnonzero(places[ids] != _FREE)  # the newest answer counts
            self._rows[places[ids[again]]] = answers[first[again]]
            new = np.flatnonzero(places[ids] == _FREE)[: self.capacity]
            if not len(new):
                return
            at = (self._next + np.arange(len(new))) % self.capacity
            self._forget(at)
            self._next = int(at[-1] + 1) % self.capacity
            ids = ids[new]
            self._rows[at], self._ids[at], self._epochs[at] = (
                answers[first[new]],
                ids,
                epoch + 1,
            )
            places[ids] = at
            # The new rows may replace the oldest ones of this epoch, and so remove its table.
            self._places[epoch] = places
            self._count[epoch] = self._count.get(epoch, 0) + len(new)

    def _forget(self, at: NDArray[np.int64]) -> None:
        """Drop the answers in these rows, and the tables of epochs without answers."""
        for marked in np.unique(self._epochs[at]):
            epoch = int(marked) - 1
            if epoch < 0:
                continue  # never written
            rows = at[self._epochs[at] == marked]
            self._places[epoch][self._ids[rows]] = _FREE
            self._count[epoch] -= len(rows)
            if not self._count[epoch]:
                del self._places[epoch], self._count[epoch]
