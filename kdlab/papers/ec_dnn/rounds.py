"""Algorithm 1 for K workers that may be lost: what each does next.

    for each worker k: w_k^0                                   -> start
    w_k <- SGD for tau iterations                              -> Train
    w_bar <- {w_1, ..., w_K, 1/K}                              -> Combine(models)
    w_k <- Compression(w_k, w_bar, D_k)   or the average       -> the worker, by Combine
    return                                                     -> Finish

The paper assumes that no worker is lost. With `waits` a lost worker is restarted and repeats its
instruction while the others wait. Without it the global model is of those that arrived (K'), and
the lost worker takes part again from the next round on, from its last reset point. Where nothing
is communicated, and in the last round, the others always wait: independent trainings lose no
iterations, and the last global model is the result. When all are lost, all restart and train the
round again.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from kdlab.papers.ec_dnn.round_schedule import Round

Phase = Literal["training", "combining", "done"]


@dataclass(frozen=True, slots=True)
class Train:
    """Train a round; the compressed models of `latest` make z-bar (Eq. 5)."""

    worker: int
    round: Round
    latest: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Combine:
    """Make the global model of `models`, and reset this worker's model by it."""

    worker: int
    round: Round
    models: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Restart:
    """Restart a lost worker."""

    worker: int


@dataclass(frozen=True, slots=True)
class Communicated:
    """Record whose models make the global model of a round."""

    round: int
    models: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Finish:
    """End the training with the local models of these workers."""

    models: tuple[int, ...]


Instruction = Train | Combine | Restart | Communicated | Finish


@dataclass(slots=True)
class Rounds:
    """State of all workers; each event yields the next instructions."""

    workers: int  # K
    rounds: Sequence[Round]
    first: int = 0  # first round, after a resume
    latest: tuple[int, ...] = ()  # workers whose compressed models make z-bar
    waits: bool = False  # in every round, for lost workers
    phase: Phase = "training"
    _round: int = 0
    _ready: set[int] = field(default_factory=set)  # workers that wait for the next round
    _busy: set[int] = field(default_factory=set)  # workers with an instruction
    _arrived: set[int] = field(default_factory=set)  # done with this phase, and alive
    _models: set[int] = field(
        default_factory=set
    )  # workers with a published model of this phase
    _members: tuple[int, ...] = ()  # K' workers of the global model

    def __post_init__(self) -> None:
        self._round = self.first

    @property
    def round(self) -> Round:
        return self.rounds[self._round]

    def on_ready(self, worker: int) -> Iterator[Instruction]:
        """A worker's process is ready, for the first time or again."""
        self._ready.add(worker)
        # All begin together, from w_k^0 of line 1; later rounds may begin without some
        if self.phase == "training" and len(self._ready) == self.workers:
            yield from self._begin()
        elif self._waits_for_all and (self._busy or self._models or self._members):
            self._ready.discard(worker)
            if worker in self._models:  # lost after it had published
                self._arrived.add(worker)
                yield from self._go_on()
                return
            self._busy.add(worker)
            if self.phase == "training":
                yield Train(worker, self.round, self.latest)
            else:
                yield Combine(worker, self.round, self._members)

    @property
    def _waits_for_all(self) -> bool:
        if self.phase == "done":
            return False
        last = self._round == len(self.rounds) - 1
        # Not as the paper, which has no lost workers: see the head of the file
        return self.waits or last or not self.round.communicates

    def on_done(self, worker: int) -> Iterator[Instruction]:
        """A worker has published its model, after training or after its reset."""
        if worker not in self._busy:
            return  # a late report of a worker that was given up
        self._busy.discard(worker)
        self._arrived.add(worker)
        self._models.add(worker)
        yield from self._go_on()

    def on_lost(self, worker: int) -> Iterator[Instruction]:
        """A worker's process was lost, with its work since the last reset point.

        A model that it has published stays in the global model.
        """
        if self.phase == "done":
            return
        was_busy = worker in self._busy
        for group in (self._ready, self._busy, self._arrived):
            group.discard(worker)
        yield Restart(worker)
        if was_busy:
            yield from self._go_on()

    def _go_on(self) -> Iterator[Instruction]:
        """Go to the next phase when no worker is busy."""
        if self._busy or (not self._models and self.phase == "training"):
            return
        if self._waits_for_all and len(self._models) < self.workers:
            return
        if self.phase == "training":  # "if tau divides t" (line 5)
            yield from self._communicate()
            if self._busy:
                return
        if self.phase == "combining":  # every local model is reset: w_k <- w_k~ (line 8)
            self.latest = tuple(sorted(self._models)) or self.latest
            self._ready |= self._arrived
            self._round += 1
            self.phase, self._arrived, self._models = "training", set(), set()
            self._members = ()
            if self._round == len(self.rounds):  # the paper's "stop criteria"
                self.phase = "done"
                yield Finish(self.latest)
            elif self._ready:
                yield from self._begin()

    def _communicate(self) -> Iterator[Instruction]:
        models = tuple(sorted(self._models))  # w_bar <- {w_1, ..., w_K, 1/K}
        yield Communicated(self._round, models)
        # E-DNN (4.4): one final communication and no compression
        if self._round == len(self.rounds) - 1 and not self.round.combines:
            self.phase = "done"
            yield Finish(models)
            return
        self.phase = "combining"
        if not self.round.combines:  # the next round follows at once
            return
        self._members = models
        self._busy, self._arrived, self._models = self._arrived, set(), set()
        for worker in sorted(self._busy):
            yield Combine(worker, self.round, models)  # w_k <- Compression(w_k, w_bar, D_k)

    def _begin(self) -> Iterator[Instruction]:
        self._busy, self._ready = self._ready, set()
        for worker in sorted(self._busy):  # w_k <- SGD until tau divides t
            yield Train(worker, self.round, self.latest)
