"""The batches of a student on their way: fresh, begun, complete, handed over.

    fresh      no sample of it was asked for yet; the next one is cut into parts
    begun      its parts are with teachers; so many samples are missing
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
        # The batch to begin next, or what is left of the one that is being cut.
        self.next: Part | None = next(self._fresh, None)
        self._epoch_left: tuple[int, int] = (-1, 0)  # (epoch, its samples not begun yet)
        self._ready: dict[int, list[int]] = {}  # complete batches by epoch, heaps
        self._expected = 0  # strict: the next batch of `epoch`
        # Batches whose latency is being measured: when their first part was sent, in order.
        self._begun: dict[Key, float] = {}
        self._whole: set[Key] = set()  # of these, the complete ones

    # Asking

    def begin(self, whole: Part, time: float | None) -> None:
        """The next batch is asked for from here on; its latency counts from a `time`."""
        self._epoch_left = (whole.epoch, self.left_of(whole.epoch) - whole.size)
        self.missing[whole.epoch, whole.batch] = whole.size
        if time is not None:
            self._begun[whole.epoch, whole.batch] = time

    def cut(self, size: int) -> Part:
        """The first so many samples of `next`, which is what follows them afterwards."""
        if self.next is None:
            raise ValueError("no batch is left to be cut")
        part = self.next._replace(stop=self.next.start + size)
        rest = self.next._replace(start=part.stop)
        self.next = rest if rest.size else next(self._fresh, None)
        return part

    def left_of(self, epoch: int) -> int:
        """Samples of an epoch of which nothing was sent yet."""
        if self._epoch_left[0] != epoch:
            done = self.delivered if epoch == self.epoch else ()
            left = sum(size for b, size in enumerate(self.sizes(epoch)) if b not in done)
            self._epoch_left = (epoch, left)
        return self._epoch_left[1]

    def holds_up(self, part: Part) -> bool:
        """Whether the next delivery waits for this part, which is under way."""
        if self.order == "strict":
            return part.epoch == self.epoch and part.batch == self._expected
        if self.next is not None and self.next.epoch == self.epoch:
            return False  # other batches of this epoch may come first
        return part.epoch == self.epoch

    # Arriving

    def arrived(self, part: Part) -> bool:
        """Whether its batch is complete by it."""
        key = (part.epoch, part.batch)
        self.missing[key] -= part.size
        if self.missing[key]:
            return False
        del self.missing[key]
        if key in self._begun:
            self._whole.add(key)
        heappush(self._ready.setdefault(part.epoch, []), part.batch)
        return True

    def take_back(self, key: Key, samples: int) -> None:
        """So many samples of a batch that arrived are missing again."""
        if key not in self.missing:
            self.missing[key] = 0
            self._whole.discard(key)
            ready = self._ready[key[0]]
            ready.remove(key[1])
            heapify(ready)
            if not ready:
                del self._ready[key[0]]
        self.missing[key] += samples

    def begun_at(self) -> Iterator[float]:
        """When those were begun that can be trained on since the last call."""
        strict = self.order == "strict"
        for key in list(self._begun) if strict else list(self._whole):
            if key not in self._whole:
                return  # those after it wait for it
            self._whole.discard(key)
            yield self._begun.pop(key)

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
        if len(self.delivered) == len(self.sizes(self.epoch)):
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
