"""The batches of a student on their way: fresh, begun, complete, handed over.

    fresh      no sample of it was asked for yet
    begun      it is cut into parts for teachers; so many samples are missing
    complete   all its soft labels are here
    delivered  the trainer has it

Epochs are handed over one after the other; within one, in the plan's order (strict) or as
they become complete (any).
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from heapq import heapify, heappop, heappush

from kdlab.papers.edl_dist.in_flight import Part
from kdlab.papers.edl_dist.reader_rules import BatchOrder

Key = tuple[int, int]  # (epoch, batch)


class Batches:
    """Mutable, but pure: its state depends on the calls alone.

    The arguments are those of `DistilReader`.
    """

    def __init__(
        self,
        sizes: Callable[[int], Sequence[int]],
        *,
        epochs: int,
        epoch: int,
        done: Collection[int],
        order: BatchOrder,
    ) -> None:
        self.sizes, self.epochs, self.order = sizes, epochs, order
        if epoch < epochs and len(done) == len(sizes(epoch)):  # saved after its last batch
            epoch, done = epoch + 1, ()
        self.epoch = epoch  # that is being handed over
        self.delivered = set(done)  # batches of it
        self.missing: dict[Key, int] = {}  # samples still to arrive of what was begun
        self._fresh = self._fresh_batches()
        self.next: Part | None = next(self._fresh, None)  # the batch to begin next
        # What is not asked for yet of those that were begun, in the plan's order.
        self.open: list[Part] = []
        self.begun = 0  # samples of all batches that were begun
        self._before: dict[Key, int] = {}  # of that: before this batch
        self._ends: dict[int, int] = {}  # and at the end of an epoch
        self._epoch_left: tuple[int, int] = (-1, 0)  # (epoch, its samples not begun yet)
        self._ready: dict[int, list[int]] = {}  # complete batches by epoch, heaps
        self._expected = 0  # strict: the next batch of `epoch`

    # Asking

    def begin(self) -> Part:
        """The next batch is asked for from here on."""
        whole = self.next
        if whole is None:
            raise ValueError("no batch is left to be begun")
        self._epoch_left = (whole.epoch, self.left_of(whole.epoch) - whole.size)
        self.missing[whole.epoch, whole.batch] = whole.size
        self._before[whole.epoch, whole.batch] = self.begun
        self.begun += whole.size
        self.open.append(whole)
        self.next = next(self._fresh, None)
        if self.next is None or self.next.epoch != whole.epoch:
            self._ends[whole.epoch] = self.begun
        return whole

    def cut(self, place: int, size: int) -> Part:
        """The first so many samples of what stands at this place of `open`."""
        whole = self.open[place]
        part = whole._replace(stop=whole.start + size)
        if part.stop == whole.stop:
            del self.open[place]
        else:
            self.open[place] = whole._replace(start=part.stop)
        return part

    def needed_at(self, part: Part) -> int:
        """Samples, of all that were begun, that can be trained on before this part is missed."""
        if self.order == "strict":
            return self._before.get((part.epoch, part.batch), self.begun)
        if part.epoch in self._ends:  # other batches of its epoch may come first
            return self._ends[part.epoch]
        return self.begun + self.left_of(part.epoch)

    def left_of(self, epoch: int) -> int:
        """Samples of an epoch of which nothing was sent yet."""
        if self._epoch_left[0] != epoch:
            done = self.delivered if epoch == self.epoch else ()
            left = sum(size for b, size in enumerate(self.sizes(epoch)) if b not in done)
            self._epoch_left = (epoch, left)
        return self._epoch_left[1]

    # Arriving

    def arrived(self, part: Part) -> bool:
        """Whether its batch is complete by it."""
        key = (part.epoch, part.batch)
        self.missing[key] -= part.size
        if self.missing[key]:
            return False
        del self.missing[key]
        heappush(self._ready.setdefault(part.epoch, []), part.batch)
        return True

    def take_back(self, key: Key, samples: int) -> None:
        """So many samples of a batch that arrived are missing again."""
        if key not in self.missing:
            self.missing[key] = 0
            ready = self._ready[key[0]]
            ready.remove(key[1])
            heapify(ready)
            if not ready:
                del self._ready[key[0]]
        self.missing[key] += samples

    # Handing over

    def complete(self) -> list[Key]:
        """Batches that wait to be handed over."""
        return [(epoch, batch) for epoch, ready in self._ready.items() for batch in ready]

    def deliver(self) -> Key | None:
        """The next batch to hand over, which is taken by this; None if it is not here."""
        ready = self._ready.get(self.epoch)
        if not ready:
            return None
        if self.order == "strict":
            while self._expected in self.delivered:
                self._expected += 1
            if ready[0] != self._expected:
                return None
        key = (self.epoch, heappop(ready))
        if not ready:
            del self._ready[self.epoch]
        self.delivered.add(key[1])
        del self._before[key]
        if len(self.delivered) == len(self.sizes(self.epoch)):
            self._ends.pop(self.epoch, None)
            self.epoch, self.delivered, self._expected = self.epoch + 1, set(), 0
        return key

    def _fresh_batches(self) -> Iterator[Part]:
        """Every batch from the start position to the end of training, in order."""
        done = frozenset(self.delivered)
        for epoch in range(self.epoch, self.epochs):
            for batch, size in enumerate(self.sizes(epoch)):
                if batch not in done:
                    yield Part(epoch, batch, 0, size)
            done = frozenset()
