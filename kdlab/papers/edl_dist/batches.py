"""The states of a student's batches, from the plan to the trainer.

    state      meaning                                             next state, by
    ---------  --------------------------------------------------  --------------------
    fresh      no sample of it was asked for yet                   begun, by `begin`
    begun      it is cut into parts for teachers; some are missing complete, by `arrived`
    complete   all its soft labels have arrived                    delivered, by `deliver`,
                                                                   or begun, by `take_back`
    delivered  the trainer has it

Epochs are delivered one after the other; batches of an epoch in the plan's order (strict) or as
they become complete (any). The paper's Algorithm 2 names samples only and no order.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from heapq import heapify, heappop, heappush

from kdlab.papers.edl_dist.in_flight import Part
from kdlab.papers.edl_dist.reader_rules import BatchOrder

Key = tuple[int, int]  # (epoch, batch)


class Batches:
    """Batches by state. Mutable, but pure: its state depends on the calls alone.

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
        # 3.4: training continues from a checkpoint. It may be one of an epoch's last batch.
        if epoch < epochs and len(done) == len(sizes(epoch)):
            epoch, done = epoch + 1, ()
        self.epoch = epoch  # that is being delivered
        self.delivered = set(done)  # batches of it
        self.missing: dict[Key, int] = {}  # samples still to arrive, of each begun batch
        self._fresh = self._fresh_batches()
        self.next: Part | None = next(self._fresh, None)  # the batch to begin next
        # The rest of begun batches that is not asked for yet, in the plan's order.
        self.open: list[Part] = []
        self.begun = 0  # samples of all batches that were begun
        self._before: dict[Key, int] = {}  # `begun` before each batch that is not delivered
        self._ends: dict[int, int] = {}  # `begun` at the end of each epoch
        self._epoch_left: tuple[int, int] = (-1, 0)  # (epoch, its samples not begun yet)
        self._ready: dict[int, list[int]] = {}  # complete batches by epoch, heaps
        self._expected = 0  # strict: the next batch of `epoch`

    # Asking

    def begin(self) -> Part:
        """Begin the next batch and return it; raise ValueError if none is left."""
        fresh = self.next
        if fresh is None:
            raise ValueError("no batch is left to be begun")
        self._epoch_left = (fresh.epoch, self.left_of(fresh.epoch) - fresh.size)
        # Algorithm 2 trains on whole batches, so all of one is missing until the last label is here
        self.missing[fresh.epoch, fresh.batch] = fresh.size
        self._before[fresh.epoch, fresh.batch] = self.begun
        self.begun += fresh.size
        self.open.append(fresh)
        self.next = next(self._fresh, None)
        if self.next is None or self.next.epoch != fresh.epoch:
            self._ends[fresh.epoch] = self.begun
        return fresh

    def cut(self, place: int, size: int) -> Part:
        """Cut the first `size` samples off the batch at `place` in `open`; return that part."""
        rest = self.open[place]
        part = rest._replace(stop=rest.start + size)
        if part.stop == rest.stop:
            del self.open[place]
        else:
            self.open[place] = rest._replace(start=part.stop)
        return part

    def needed_at(self, part: Part) -> int:
        """Number of begun samples that can be trained on before this part is missed."""
        if self.order == "strict":  # those of the batches before it
            return self._before.get((part.epoch, part.batch), self.begun)
        if part.epoch in self._ends:  # other batches of its epoch may come first
            return self._ends[part.epoch]
        return self.begun + self.left_of(part.epoch)

    def left_of(self, epoch: int) -> int:
        """Samples of an epoch's batches that are not begun yet."""
        if self._epoch_left[0] != epoch:
            done = self.delivered if epoch == self.epoch else ()
            left = sum(size for b, size in enumerate(self.sizes(epoch)) if b not in done)
            self._epoch_left = (epoch, left)
        return self._epoch_left[1]

    # Arriving

    def arrived(self, part: Part) -> bool:
        """Count the samples of a part; return whether its batch is complete now."""
        key = (part.epoch, part.batch)
        self.missing[key] -= part.size
        if self.missing[key]:
            return False
        del self.missing[key]
        heappush(self._ready.setdefault(part.epoch, []), part.batch)
        return True

    def take_back(self, key: Key, samples: int) -> None:
        """Count `samples` of a batch as missing again, since their labels cannot be used."""
        # Beyond the paper (trust.py): no label of its teachers is ever taken back.
        if key not in self.missing:
            self.missing[key] = 0
            ready = self._ready[key[0]]
            ready.remove(key[1])
            heapify(ready)
            if not ready:
                del self._ready[key[0]]
        self.missing[key] += samples

    # Delivering

    def complete(self) -> list[Key]:
        """Batches that wait to be delivered."""
        return [(epoch, batch) for epoch, ready in self._ready.items() for batch in ready]

    def deliver(self) -> Key | None:
        """Take the next batch to deliver (Algorithm 2, lines 3 and 4); None if there is none."""
        ready = self._ready.get(self.epoch)
        if not ready:
            return None
        if self.order == "strict":  # also any group of several ranks
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
        """All batches from the start position to the end of training, in the plan's order."""
        done = frozenset(self.delivered)
        for epoch in range(self.epoch, self.epochs):
            for batch, size in enumerate(self.sizes(epoch)):
                if batch not in done:
                    yield Part(epoch, batch, 0, size)
            done = frozenset()
