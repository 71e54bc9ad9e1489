"""Mishaps of teachers that compute nothing, simulated or emulated.

Such teachers take the time of real ones; they come, go, become slow, hang and recover.
"""

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Generic, Literal, TypeVar

from kdlab.config import Fault, Range
from kdlab.config.spec import NOT_NEGATIVE, POSITIVE, SHARE, Spec
from kdlab.papers.edl_dist.request_sizes import best_and_least, measure_sizes

_COUNT, _SIZE = Range(ge=0), Range(ge=1)
_LATELY_S = 1.0  # a teacher that had something to do since then serves a student


@dataclass(frozen=True, kw_only=True)
class Move(Spec):
    """A line of a trace: machines that come, go, slow down or hang at a time.

    at_s: seconds from the start; of emulated teachers, from the first request.
    every_s: repeat after these seconds; null is once.
    join: number of teachers of the first kind that come, when the others are gone.
    lose, slow, hang: numbers that go, become `times` slower, or answer nothing and stay silent.
    which: any teachers that serve a student, the newest, or the quickest.
    notice_s: seconds from goodbye to end, as on spot machines; 0 is a sudden end.
    for_s: seconds until slow or hanging teachers recover; null is never.
    """

    at_s: Annotated[float, NOT_NEGATIVE] = 0.0
    every_s: Annotated[float, POSITIVE] | None = None
    join: Annotated[int, _COUNT] = 0
    lose: Annotated[int, _COUNT] = 0
    slow: Annotated[int, _COUNT] = 0
    hang: Annotated[int, _COUNT] = 0
    which: Literal["any", "newest", "quickest"] = "any"
    times: Annotated[float, POSITIVE] = 10.0
    notice_s: Annotated[float, NOT_NEGATIVE] = 0.0
    for_s: Annotated[float, POSITIVE] | None = None

    def cross_faults(self) -> Iterator[Fault]:
        if not self.join + self.lose + self.slow + self.hang:
            yield Fault("join", "is 0, as are lose, slow and hang: nothing happens")


@dataclass(frozen=True, kw_only=True)
class Behaviour(Spec):
    """Behaviour of teachers that compute nothing.

    best_batch, least_batch: the largest request of a teacher, and the size below which its
        efficiency falls off; null: as a real one of its rate and request_s measures them.
    request_s: overhead of a teacher for each request.
    jitter: service times are spread evenly by this share around their mean.
    latency_s: of a link, one way.
    moves: when teachers come, go, slow down and hang.
    seed: of all random choices.
    """

    best_batch: Annotated[int, _SIZE] | None = None
    least_batch: Annotated[int, _SIZE] | None = None
    request_s: Annotated[float, NOT_NEGATIVE] = 0.0
    jitter: Annotated[float, SHARE] = 0.0
    latency_s: Annotated[float, NOT_NEGATIVE] = 0.0
    moves: tuple[Move, ...] = ()
    seed: int = 0

    def cross_faults(self) -> Iterator[Fault]:
        best, least = self.best_batch, self.least_batch
        if best is not None and least is not None and least > best:
            yield Fault("least_batch", f"is {least} samples and best_batch is {best}")

    def sizes(self, t_t: float, batch: int) -> tuple[int, int]:
        """(best, smallest) request of a teacher of `t_t` samples/s for students of `batch`."""
        times = measure_sizes(batch, lambda size: self.request_s + size / t_t)
        best, least = best_and_least(times)
        best = min(batch, self.best_batch or best)
        return best, min(best, self.least_batch or least)


class TimedTeacher:
    """A teacher that computes nothing: its requests take time, one after the other."""

    def __init__(self, t_t: float, how: Behaviour, chance: random.Random) -> None:
        self.t_t, self.how, self.chance = t_t, how, chance  # samples/s while it is well
        self.free_at = 0.0  # seconds, when its requests are done
        self.alive = True
        self.times = 1.0  # factor on its service times; 1 while it is well
        self.hangs_until = 0.0  # seconds

    def is_well(self, time: float) -> bool:
        return self.alive and self.times == 1.0 and self.hangs_until <= time

    def start_request(self, size: int, arrived: float) -> float:
        """Queue a request; return when it begins, in seconds. It ends at `free_at`."""
        spread = 1 + self.how.jitter * (2 * self.chance.random() - 1)
        begin = max(arrived, self.free_at, self.hangs_until)
        self.free_at = begin + spread * self.times * (self.how.request_s + size / self.t_t)
        return begin


T = TypeVar("T", bound=TimedTeacher)


def to_be_had(
    capacities: Sequence[tuple[float, float]], demand: float, since: float, until: float
) -> float:
    """Samples that teachers could have answered from `since` to `until`, up to the demand.

    `capacities` are (seconds, samples/s of all teachers from then on); the demand is in samples/s.
    """
    ends = [*(at for at, _ in capacities[1:]), until]
    return sum(
        min(demand, capacity) * max(0.0, min(end, until) - max(at, since))
        for (at, capacity), end in zip(capacities, ends, strict=True)
    )


class Mishaps(ABC, Generic[T]):
    """Applies moves to teachers; subclasses announce each to the pool."""

    teachers: Mapping[Any, T]  # in the order in which they came

    def __init__(
        self,
        chance: random.Random,
        now: Callable[[], float],
        after: Callable[[float, Callable[[], None]], object],
    ) -> None:
        self.chance, self.now, self.after = chance, now, after
        self.capacities: list[tuple[float, float]] = []  # (seconds, samples/s since then)

    @abstractmethod
    def join_one(self) -> None:
        """Start a teacher of the first kind."""

    @abstractmethod
    def warn(self, victim: T) -> None:
        """Let a teacher say that it will go."""

    @abstractmethod
    def end(self, victim: T) -> None:
        """End a teacher."""

    def ail(self, victim: T) -> None:
        """Announce that a teacher is slow, hangs or is well again from now on."""

    def plan(self, moves: Iterable[Move]) -> None:
        for move in moves:
            self.after(move.at_s, partial(self._happen, move))

    def _happen(self, move: Move) -> None:
        for number, what in (
            (move.lose, self._leave),
            (move.slow, self._slow),
            (move.hang, self._hang),
        ):
            for _ in range(number):
                self._strike(move, what)
        for _ in range(move.join):
            self.join_one()
        self.note_capacity()
        if move.every_s is not None:
            self.after(move.every_s, partial(self._happen, move))

    def note_capacity(self) -> None:
        now = self.now()
        working = [t for t in self.teachers.values() if t.alive and t.hangs_until <= now]
        self.capacities.append((now, sum(t.t_t / t.times for t in working)))

    def _strike(self, move: Move, what: Callable[[Move, T], None]) -> None:
        """Apply `what` to a teacher that is well, preferably one that serves a student."""
        now = self.now()
        well = [t for t in self.teachers.values() if t.is_well(now)]
        well = [t for t in well if t.free_at > now - _LATELY_S] or well
        if not well:
            return
        if move.which == "quickest":
            what(move, max(well, key=lambda t: t.t_t))
        else:
            what(move, well[-1] if move.which == "newest" else self.chance.choice(well))

    def _leave(self, move: Move, victim: T) -> None:
        if move.notice_s:
            self.warn(victim)
            self.after(move.notice_s, partial(self._gone, victim))
        else:
            self._gone(victim)

    def _gone(self, victim: T) -> None:
        if victim.alive:
            victim.alive = False
            self.end(victim)
            self.note_capacity()

    def _slow(self, move: Move, victim: T) -> None:
        victim.times = move.times
        self._until_well(move, victim)

    def _hang(self, move: Move, victim: T) -> None:
        """Let a teacher compute and renew nothing until it recovers, if it does."""
        victim.hangs_until = self.now() + (1e9 if move.for_s is None else move.for_s)
        self._until_well(move, victim)

    def _until_well(self, move: Move, victim: T) -> None:
        self.ail(victim)
        if move.for_s is not None:
            self.after(move.for_s, partial(self._recover, victim))

    def _recover(self, victim: T) -> None:
        if victim.alive:
            victim.times, victim.hangs_until = 1.0, 0.0
            self.ail(victim)
            self.note_capacity()
