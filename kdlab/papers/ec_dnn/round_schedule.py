"""What each round of Algorithm 1 consists of: iterations, and the weights of its losses.

    while stop criteria are not satisfied:                 -> iterations, `RoundSchedule.rounds`
        w_k <- one SGD step; t <- t + 1                    -> Round.train_steps, t counts these
        if tau divides t:
            ensemble, Compression (p iterations), reset    -> Round.compress_steps

The paper leaves open (and `p_of` and `StepWeight` say which reading is taken here):

- "p is 10 % of the number of mini-batches of the whole training": of each compression or of
  all together. With tau = 4000 the first makes each compression longer than the training
  before it, so all together is the reading.
- "0.6 after the first 20 % of the compression processes": of R of them the first
  floor(0.2 R) have the lower weight.
- Whether the last communication is followed by a compression. Algorithm 1 does it when tau
  divides t; here it is left out unless asked for, since nothing is trained after it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from math import ceil, floor


@dataclass(frozen=True, slots=True)
class Round:
    """Local training, then a communication, then perhaps a compression."""

    number: int  # from 0
    train_steps: int  # local iterations, tau but for the last round
    compress_steps: int = 0  # p iterations on the accelerated compression loss (Eq. 6).
    compression_weight: float = 0.0  # beta of Eq. 6.
    # Alpha of Eq. 5; 0 in round 0, where no model was compressed yet.
    diversity_weight: float = 0.0
    communicates: bool = True  # models are exchanged after it
    combines: bool = True  # each local model is reset to something after it
    exchanged: float = 1.0  # share of what travels in a communication that does in its own


@dataclass(frozen=True, slots=True)
class StepWeight:
    """beta of Eq. 6: one weight for the first compressions, a higher one after (5.1)."""

    start: float = 0.4  # for the first share `rise_after` of all compressions
    end: float = 0.6  # for the rest; the same as start is a constant weight
    rise_after: float = 0.2

    def at(self, compression: int, of: int) -> float:
        """The weight in compression number `compression` (from 0) of `of`."""
        return self.start if compression < floor(self.rise_after * of + 1e-9) else self.end


@dataclass(frozen=True, kw_only=True)
class RoundSchedule:
    """All rounds of a training."""

    iterations: int  # local ones of every worker: t at the end
    tau: int | None  # iterations between communications; None communicates once, at the end
    # Whether the global model is brought back to the size of a local one
    compresses: bool = False
    p_iterations: int | None = None  # of each compression; None takes `p_fraction`
    p_fraction: float = 0.1  # of `iterations`, for all compressions together
    compression_weight: StepWeight = StepWeight()  # beta
    diversity_weight: float = 0.0  # alpha
    compress_last: bool = False  # also after the last communication
    # The global model has averaged weights, and every local one is reset to it
    averages: bool = False
    # Without a communication, as many rounds as this, to be looked at between
    looks: int = 1
    # Share of what travels in a communication that does in number r of so many; None is all
    exchanged: Callable[[int, int], float] | None = None
    # Share of the iterations before the diversity weight, or what stands in its place, counts
    begins: float = 0.0

    @cached_property
    def rounds(self) -> tuple[Round, ...]:
        tau = self.tau or ceil(self.iterations / self.looks)
        number = ceil(self.iterations / tau)
        compressions = self._compressions(number)
        found = []
        for r in range(number):
            steps = min(tau, self.iterations - r * tau)
            compresses = r < compressions
            counts = bool(r) and r * tau >= self.begins * self.iterations
            found.append(
                Round(
                    r,
                    steps,
                    compress_steps=self._p(r, compressions) if compresses else 0,
                    compression_weight=self.compression_weight.at(r, compressions)
                    if compresses
                    else 0.0,
                    diversity_weight=self.diversity_weight if counts else 0.0,
                    communicates=self.tau is not None or r == number - 1,
                    combines=compresses or self.averages,
                    exchanged=1.0 if self.exchanged is None else self.exchanged(r, number),
                )
            )
        return tuple(found)

    def _compressions(self, rounds: int) -> int:
        if not self.compresses:
            return 0
        return rounds if self.compress_last else rounds - 1

    def _p(self, compression: int, of: int) -> int:
        """Steps of one compression; a fraction that does not divide is spread evenly."""
        if self.p_iterations is not None:
            return self.p_iterations
        total = round(self.p_fraction * self.iterations)
        return total * (compression + 1) // of - total * compression // of

    def before(self, number: int) -> tuple[int, int]:
        """(local, compressing) steps of a worker in all rounds before this one."""
        done = self.rounds[:number]
        return sum(r.train_steps for r in done), sum(r.compress_steps for r in done)

    @cached_property  # asked for at every step
    def compress_steps(self) -> int:
        """Steps of all compressions."""
        return sum(r.compress_steps for r in self.rounds)

    @property
    def steps(self) -> int:
        """SGD steps of a worker in all, local and compressing."""
        return self.iterations + self.compress_steps
