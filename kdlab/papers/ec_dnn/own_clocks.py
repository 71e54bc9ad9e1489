"""EASGD's Algorithm 1 (arXiv:1412.6651) for workers that may be lost: what each does next.

    x_i <- SGD for tau iterations, on its own clock        -> Train
    x_i, centre <- each a way to the other                 -> Combine, one worker at a time
    return                                                 -> Finish

It has the instructions of `Rounds`, and its rounds are each worker's own: nobody waits but for
the centre. A lost worker does again what it was at; what it has trained, it has trained.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from kdlab.papers.ec_dnn.round_schedule import Round
from kdlab.papers.ec_dnn.rounds import (
    Combine,
    Communicated,
    Finish,
    Instruction,
    Restart,
    Train,
)


@dataclass(slots=True)
class OwnClocks:
    """Who does what next."""

    clocks: list[int]  # round of each worker; the number of rounds where it has done all
    rounds: Sequence[Round]  # of the timetable
    trained: set[int] = field(default_factory=set)  # have trained theirs, and not exchanged
    _training: set[int] = field(default_factory=set)
    _queue: list[int] = field(default_factory=list)  # the first one is at the centre
    _exchanging: bool = False

    @property
    def first(self) -> int:
        """Round of the slowest."""
        return min(self.clocks)

    def on_ready(self, worker: int) -> Iterator[Instruction]:
        """A worker's process is up, for the first time or again."""
        if worker in self.trained:
            self._queue.append(worker)
            yield from self._exchange()
        elif self.clocks[worker] < len(self.rounds):
            self._training.add(worker)
            yield Train(worker, self.rounds[self.clocks[worker]], (worker,))

    def on_done(self, worker: int) -> Iterator[Instruction]:
        """It has trained its round, or has exchanged with the centre."""
        if worker in self._training:
            self._training.discard(worker)
            self.trained.add(worker)
            yield from self.on_ready(worker)
        elif self._exchanging and worker == self._queue[0]:
            self._leave(worker)
            self.trained.discard(worker)
            number, self.clocks[worker] = self.clocks[worker], self.clocks[worker] + 1
            everybody = range(len(self.clocks))
            if self.first > number:
                yield Communicated(number, tuple(everybody))
            if self.first == len(self.rounds):  # its centre is the last
                yield Finish((worker, *(k for k in everybody if k != worker)))
            yield from self.on_ready(worker)
            yield from self._exchange()

    def on_lost(self, worker: int) -> Iterator[Instruction]:
        """Its process is gone: the centre is as before, and free for the next."""
        self._training.discard(worker)
        self._leave(worker)
        if self.clocks[worker] < len(self.rounds):
            yield Restart(worker)
        yield from self._exchange()

    def _leave(self, worker: int) -> None:
        if worker in self._queue:
            self._exchanging = self._exchanging and worker != self._queue[0]
            self._queue.remove(worker)

    def _exchange(self) -> Iterator[Instruction]:
        if self._queue and not self._exchanging:
            self._exchanging, worker = True, self._queue[0]
            yield Combine(worker, self.rounds[self.clocks[worker]], (worker,))
