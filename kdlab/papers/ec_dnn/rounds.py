"""Algorithm 1 for K workers that may be lost: what each does next.

    for each worker k: w_k^0                                   -> start
    w_k <- SGD for tau iterations                              -> Train
    w_bar <- {w_1, ..., w_K, 1/K}                              -> Combine(models)
    w_k <- Compression(w_k, w_bar, D_k)   or the average       -> the worker's, told by Combine
    return                                                     -> Finish

The paper assumes that all K arrive. With `waits` they do: a lost worker is started again, does
again what it was at, and the others wait for it. Else the average is over those that arrived
(K'), and the round goes on; the lost worker takes part from the next round on, from its own last
reset point. Where nothing is communicated, or for the last time, the others always wait for it:
independent trainings lose no iterations, and the last global model is what all was for. When
nobody is left all wait until everybody is back, and train the round again.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from kdlab.papers.ec_dnn.round_schedule import Round

Phase = Literal["training", "combining", "done"]


@dataclass(frozen=True, slots=True)
class Train:
    """A worker's next round. `latest` are whose compressed models make z-bar (Eq. 5)."""

    worker: int
    round: Round
    latest: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Combine:
    """Models of these workers make the global one; this worker's is reset to what it gives."""

    worker: int
    round: Round
    models: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Restart:
    """A lost worker is started again."""

    worker: int


@dataclass(frozen=True, slots=True)
class Communicated:
    """For the record: who was in a round's global model."""

    round: int
    models: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Finish:
    """The end: the local models of these workers, and their global one."""

    models: tuple[int, ...]


Instruction = Train | Combine | Restart | Communicated | Finish


@dataclass(slots=True)
class Rounds:
    """Who does what next."""

    workers: int  # K
    rounds: Sequence[Round]  # of the timetable
    first: int = 0  # round to begin with, after a resume
    # Workers whose compressed models were made in the round before it
    latest: tuple[int, ...] = ()
    waits: bool = False  # in every round, for whoever is lost
    phase: Phase = "training"
    _round: int = 0
    _ready: set[int] = field(default_factory=set)  # wait for a round to begin
    _busy: set[int] = field(default_factory=set)
    _arrived: set[int] = field(default_factory=set)  # have done this phase, and are there
    _models: set[int] = field(default_factory=set)  # can be fetched, whoever made them
    _members: tuple[int, ...] = ()  # of the global model that is combined

    def __post_init__(self) -> None:
        self._round = self.first

    @property
    def round(self) -> Round:
        return self.rounds[self._round]

    def on_ready(self, worker: int) -> Iterator[Instruction]:
        """A worker's process is up, for the first time or again."""
        self._ready.add(worker)
        # All begin together; after that nobody waits for whoever is away.
        if self.phase == "training" and len(self._ready) == self.workers:
            yield from self._begin()
        elif self._waits_for_all and (self._busy or self._models or self._members):
            self._ready.discard(worker)
            if worker in self._models:
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
        return self.waits or last or not self.round.communicates

    def on_done(self, worker: int) -> Iterator[Instruction]:
        """It has done its local iterations, or has its reset point: its model can be fetched."""
        if worker not in self._busy:
            return  # the last words of one that was given up
        self._busy.discard(worker)
        self._arrived.add(worker)
        self._models.add(worker)
        yield from self._go_on()

    def on_lost(self, worker: int) -> Iterator[Instruction]:
        """Its process is gone, and what it did since its last reset point.

        A model that it has published stays in the average.
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
        """When nobody is busy any more."""
        if self._busy or (not self._models and self.phase == "training"):
            return
        if self._waits_for_all and len(self._models) < self.workers:
            return
        if self.phase == "training":
            yield from self._communicate()
            if self._busy:
                return
        if self.phase == "combining":
            self.latest = tuple(sorted(self._models)) or self.latest
            self._ready |= self._arrived
            self._round += 1
            self.phase, self._arrived, self._models = "training", set(), set()
            self._members = ()
            if self._round == len(self.rounds):
                self.phase = "done"
                yield Finish(self.latest)
            elif self._ready:
                yield from self._begin()

    def _communicate(self) -> Iterator[Instruction]:
        models = tuple(sorted(self._models))  # w_bar <- {w_1, ..., w_K, 1/K}
        yield Communicated(self._round, models)
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
