"""Algorithm 1 of EASGD (arXiv:1412.6651) for workers that may be lost: what each does next.

    x_i <- SGD for tau iterations, on its own clock        -> Train
    x_i, centre <- move towards each other                 -> Combine, one worker at a time
    return                                                 -> Finish

The instructions are those of `Rounds`, but each worker counts its own rounds and waits only for the
centre. A lost worker repeats its instruction; a round that it has trained is not trained again.
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
    """State of all workers; each event yields the next instructions."""

    clocks: list[int]  # round of each worker (its t^i); the number of rounds at its end
    rounds: Sequence[Round]
    trained: set[int] = field(default_factory=set)  # workers that are to exchange
    _training: set[int] = field(default_factory=set)
    _queue: list[int] = field(
        default_factory=list
    )  # for the centre, first come first served
    _exchanging: bool = False  # the first of the queue is at the centre

    @property
    def first(self) -> int:
        """Round of the slowest worker."""
        return min(self.clocks)

    def on_ready(self, worker: int) -> Iterator[Instruction]:
        """A worker's process is ready, for the first time or again."""
        if worker in self.trained:  # it was lost between training and the exchange
            self._queue.append(worker)
            yield from self._exchange()
        elif self.clocks[worker] < len(self.rounds):
            self._training.add(worker)
            # z-bar does not exist here, so only its own model is named
            yield Train(worker, self.rounds[self.clocks[worker]], (worker,))

    def on_done(self, worker: int) -> Iterator[Instruction]:
        """A worker has trained its round, or has exchanged with the centre."""
        if worker in self._training:  # "if tau divides t^i": its turn at the centre
            self._training.discard(worker)
            self.trained.add(worker)
            yield from self.on_ready(worker)
        elif self._exchanging and worker == self._queue[0]:  # t^i <- t^i + 1, in rounds
            self._leave(worker)
            self.trained.discard(worker)
            number, self.clocks[worker] = self.clocks[worker], self.clocks[worker] + 1
            everybody = range(len(self.clocks))
            if self.first > number:  # the last worker to finish this round
                yield Communicated(number, tuple(everybody))
            if self.first == len(self.rounds):  # its centre is the final one
                yield Finish((worker, *(k for k in everybody if k != worker)))
            yield from self.on_ready(worker)
            yield from self._exchange()

    def on_lost(self, worker: int) -> Iterator[Instruction]:
        """A worker's process was lost; the centre is unchanged, and free for the next."""
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
        # One at a time: both sides of an exchange need the centre of the same moment
        if self._queue and not self._exchanging:
            self._exchanging, worker = True, self._queue[0]
            yield Combine(worker, self.rounds[self.clocks[worker]], (worker,))
