"""A reader's batches until the trainer has them: ids, views, soft labels."""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine

import numpy as np
from numpy.typing import NDArray

from kdlab.cluster.reader.ring import Slot
from kdlab.data.samples import PlannedSamples
from kdlab.papers.edl_dist.in_flight import Part
from kdlab.soft_labels.label_file import GrowingLabels, made_by

LateWork = Callable[[], object]


class BatchesUnderWay:
    """Batches of a student's samples, with the parts of them that have arrived.

    Args:
        samples: of the student.
        classes: numbers of a soft label.
        labels: stores soft labels for later epochs; None stores none.
    """

    def __init__(
        self, samples: PlannedSamples, classes: int, labels: GrowingLabels | None
    ) -> None:
        self._samples, self._classes, self._labels = samples, classes, labels
        self._reported = False  # whether `finish` has returned its labels
        self._cuts: dict[int, list[NDArray[np.int64]]] = {}  # by epoch
        self._soft: dict[tuple[int, int], NDArray[np.float32]] = {}
        self._views: dict[tuple[int, int], NDArray[np.uint8]] = {}  # sent by value
        # Slow views in preparation; nobody awaits those that another teacher's answer made
        # needless.
        self._making: dict[tuple[int, int], asyncio.Task[NDArray[np.uint8]]] = {}

    def ids(self, epoch: int, batch: int) -> NDArray[np.int64]:
        if epoch not in self._cuts:
            self._cuts[epoch] = self._samples.batches(epoch)
        return self._cuts[epoch][batch]

    def view_of(self, epoch: int) -> int:
        """The epoch whose views are used in this epoch."""
        return epoch if self._labels is None else self._labels.view_of(epoch)

    async def views(self, part: Part, *, keep: bool) -> NDArray[np.uint8]:
        """Views of a part; with `keep` the whole batch's are kept, which a re-send needs again.

        A batch that is checked may be delivered already, and its views dropped.
        """
        rows, key = slice(part.start, part.stop), (part.epoch, part.batch)
        ids, view = self.ids(*key), self.view_of(part.epoch)
        if not self._samples.data.slow:
            if not keep:
                return self._samples.views(ids[rows], view)
            if key not in self._views:
                self._views[key] = self._samples.views(ids, view)
            return self._views[key][rows]
        if not keep:
            return await asyncio.to_thread(self._samples.views, ids[rows], view)
        if key not in self._making:  # once for all parts of a batch
            making = asyncio.to_thread(self._samples.views, ids, view)
            self._making[key] = asyncio.ensure_future(making)
        return (await asyncio.shield(self._making[key]))[rows]

    def knows(self, epoch: int, batch: int) -> bool:
        """True where the soft labels of a batch are stored."""
        return self._labels is not None and self._labels.knows(
            self.ids(epoch, batch), epoch
        )

    def take_cached(self, part: Part) -> None:
        assert self._labels is not None
        ids = self.ids(part.epoch, part.batch)
        self._soft_of(part.epoch, part.batch)[:] = self._labels.get(ids, part.epoch)

    def put(self, part: Part, answer: NDArray[np.float32], engine: str) -> None:
        rows = slice(part.start, part.stop)
        self._soft_of(part.epoch, part.batch)[rows] = answer
        if self._labels is not None:
            ids = self.ids(part.epoch, part.batch)[rows]
            self._labels.put(ids, part.epoch, answer, engine)

    def _soft_of(self, epoch: int, batch: int) -> NDArray[np.float32]:
        key = (epoch, batch)
        if key not in self._soft:
            shape = (len(self.ids(epoch, batch)), self._classes)
            self._soft[key] = np.empty(shape, np.float32)
        return self._soft[key]

    def move_to(self, slot: Slot, epoch: int, batch: int) -> tuple[int, LateWork | None]:
        """Fill a slot of the ring, and drop the batch.

        Returns:
            Number of samples, and work that is left, in any thread, before the slot may be
            read: views that take long.
        """
        ids, key = self.ids(epoch, batch), (epoch, batch)
        count, view = len(ids), self.view_of(epoch)
        slot.head[:] = (epoch, batch, count)
        slot.ids[:count] = ids
        slot.labels[:count] = self._samples.labels(ids)
        slot.soft[:count] = self._soft.pop(key)
        views, place = self._views.pop(key, None), slot.views[:count]
        making = self._making.pop(key, None)
        if making is not None and making.done() and making.exception() is None:
            views = making.result()
        for old in [e for e in self._cuts if e < epoch]:
            del self._cuts[old]
        if views is not None:
            place[:] = views
        elif self._samples.data.slow:
            return count, lambda: self._samples.views(ids, view, out=place)
        else:
            self._samples.views(ids, view, out=place)
        return count, None

    def finish(self) -> dict[str, int] | None:
        """Complete the file of stored soft labels, if all are there.

        Returns:
            Labels by the engine that computed them, once, when all are there.
        """
        if self._labels is None or not self._labels.finish() or self._reported:
            return None
        self._reported = True
        return made_by(self._labels.folder)


class HandOver:
    """Hands batches to the trainer in the order in which they are complete.

    Slow views are made in a thread first; the reader's loop continues meanwhile.

    Args:
        done: called with each slot that the trainer may read.
        spawn: runs a coroutine in the background.
    """

    def __init__(
        self,
        done: Callable[[int], None],
        spawn: Callable[[Coroutine[object, None, None]], None],
    ) -> None:
        self._done, self._spawn = done, spawn
        self._unmade = deque[tuple[int, LateWork | None]]()  # waiting slots, in order

    def add(self, slot: int, left: LateWork | None) -> None:
        """Queue a slot that is filled except for the work that is `left`."""
        if left is None and not self._unmade:
            self._done(slot)
            return
        self._unmade.append((slot, left))
        if len(self._unmade) == 1:
            self._spawn(self._make())

    async def _make(self) -> None:
        while self._unmade:
            slot, left = self._unmade[0]
            if left is not None:
                await asyncio.to_thread(left)
            self._done(slot)
            self._unmade.popleft()
