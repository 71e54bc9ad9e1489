"""What a reader keeps of each batch until the trainer has it: ids, views, soft labels."""

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
    """The student's samples, cut into batches.

    Args:
        samples: that it trains on.
        classes: numbers of a soft label.
        labels: keeps soft labels for later epochs; None keeps none.
    """

    def __init__(
        self, samples: PlannedSamples, classes: int, labels: GrowingLabels | None
    ) -> None:
        self._samples, self._classes, self._labels = samples, classes, labels
        self._told = False  # who made the kept labels
        self._cuts: dict[int, list[NDArray[np.int64]]] = {}  # by epoch
        self._soft: dict[tuple[int, int], NDArray[np.float32]] = {}
        self._views: dict[tuple[int, int], NDArray[np.uint8]] = {}  # by value: kept
        # The same of views that take long; one that another teacher's answer made needless ends
        # for nobody.
        self._making: dict[tuple[int, int], asyncio.Task[NDArray[np.uint8]]] = {}

    def ids(self, epoch: int, batch: int) -> NDArray[np.int64]:
        if epoch not in self._cuts:
            self._cuts[epoch] = self._samples.batches(epoch)
        return self._cuts[epoch][batch]

    def view_of(self, epoch: int) -> int:
        """The epoch whose views are shown."""
        return epoch if self._labels is None else self._labels.view_of(epoch)

    async def views(self, part: Part, *, keep: bool) -> NDArray[np.uint8]:
        """Views of a part; with `keep` those of the whole batch, which a re-send needs again.

        A batch that is checked may be delivered already, and its views gone.
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
            made = asyncio.to_thread(self._samples.views, ids, view)
            self._making[key] = asyncio.ensure_future(made)
        return (await asyncio.shield(self._making[key]))[rows]

    def knows(self, epoch: int, batch: int) -> bool:
        """Whether the soft labels of a batch were kept."""
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
        """Fill a slot of the ring, and forget the batch.

        Returns:
            Its samples, and what is left to do, in any thread, before the slot may be read:
            views that take long.
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
        """The file of kept soft labels may be complete by now.

        Returns:
            Labels of each engine that computed some, the first time that all are there.
        """
        if self._labels is None or not self._labels.finish() or self._told:
            return None
        self._told = True
        return made_by(self._labels.folder)


class HandOver:
    """Batches go to the trainer in the order in which they are complete.

    Views that take long are made in a thread first; the reader's loop goes on meanwhile.

    Args:
        done: is called with each slot that the trainer may read.
        spawn: carries a coroutine out beside others.
    """

    def __init__(
        self,
        done: Callable[[int], None],
        spawn: Callable[[Coroutine[object, None, None]], None],
    ) -> None:
        self._done, self._spawn = done, spawn
        self._unmade = deque[tuple[int, LateWork | None]]()  # slots that wait, in order

    def add(self, slot: int, left: LateWork | None) -> None:
        """A slot that is filled but for the work that is `left`."""
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
