"""Rounds of Algorithm 1: their iterations, and the weights of their losses.

    while stop criteria are not satisfied:                 -> iterations, `RoundSchedule.rounds`
        w_k <- one SGD step; t <- t + 1                    -> Round.train_steps, t counts these
        if tau divides t:
            ensemble, Compression (p iterations), reset    -> Round.compress_steps

The paper leaves open, and kdlab reads as follows:

- p is "10 % of the number of the mini-batches that the whole training lasts" (5.1), of each
  compression or of all. With tau = 4000 the first would make each compression longer than the
  training before it, so p_fraction is of all compressions.
- "0.4 for the first 20 % of compression processes" (5.1): of R, these are the first floor(0.2 R).
- The last communication: Algorithm 1 compresses after it where tau divides t. Here it does not
  unless `compress_last` is set, since nothing is trained after it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from math import ceil, floor


@dataclass(frozen=True, slots=True)
class Round:
    """Local training, then a communication and a compression where it has them."""

    number: int  # from 0
    train_steps: int  # local iterations: tau, fewer in the last round
    compress_steps: int = 0  # p of Algorithm 2, on the loss of Eq. 6
    compression_weight: float = 0.0  # beta of Eq. 6
    diversity_weight: float = 0.0  # alpha of Eq. 5; 0 in round 0, which has no z-bar
    communicates: bool = True  # models are exchanged after training
    combines: bool = True  # "local model reset" of 4.1 follows
    exchanged: float = 1.0  # share of a full communication that travels


@dataclass(frozen=True, slots=True)
class StepWeight:
    """beta of Eq. 6 by compression: constant, or higher after the first ones (5.1)."""

    start: float = 0.4  # for the share `rise_after` of compressions; 1 on ImageNet
    end: float = 0.6  # for the rest; equal to start: the constant beta of 5.1
    rise_after: float = 0.2  # explored: 0.1, 0.2, 0.3

    def at(self, compression: int, of: int) -> float:
        """Return beta in compression number `compression` (from 0) of `of`."""
        # 1e-9: a product such as 0.29 * 100 is just below its integer
        return self.start if compression < floor(self.rise_after * of + 1e-9) else self.end


@dataclass(frozen=True, kw_only=True)
class RoundSchedule:
    """Rounds of a whole training."""

    iterations: int  # local ones of each worker: t at the end
    tau: int | None  # None: one communication at the end (E-DNN, 4.4)
    compresses: bool = False  # Compression_distill after a communication (Algorithm 2)
    p_iterations: int | None = None  # p of each compression; None takes `p_fraction`
    p_fraction: float = 0.1  # of `iterations`, for all compressions together (5.1: 10 %)
    compression_weight: StepWeight = StepWeight()  # beta (5.1)
    diversity_weight: float = 0.0  # alpha (5.1: 0.6)
    compress_last: bool = False  # also after the last communication
    averages: bool = False  # MA-DNN: local models are reset to averaged weights (Eq. 1)
    looks: int = 1  # rounds where tau is None, only for evaluations
    # Share of a full communication that travels in number r of so many; None: always 1
    exchanged: Callable[[int, int], float] | None = None
    begins: float = 0.0  # share of the iterations before `diversity_weight` counts

    @cached_property
    def rounds(self) -> tuple[Round, ...]:
        tau = self.tau or ceil(self.iterations / self.looks)
        number = ceil(self.iterations / tau)
        compressions = self._compressions(number)
        rounds = []  # each ends where tau divides t, or at the end of training
        for r in range(number):
            steps = min(tau, self.iterations - r * tau)
            compresses = r < compressions  # line 7 of Algorithm 1
            # z-bar is of the latest compressed models (Eq. 5): none before round 1
            counts = bool(r) and r * tau >= self.begins * self.iterations
            rounds.append(
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
        return tuple(rounds)

    def _compressions(self, rounds: int) -> int:
        if not self.compresses:
            return 0
        return rounds if self.compress_last else rounds - 1  # see the head of the file

    def _p(self, compression: int, of: int) -> int:
        """Return p of one compression; a fraction that does not divide is spread evenly."""
        if self.p_iterations is not None:
            return self.p_iterations
        total = round(self.p_fraction * self.iterations)
        # Algorithm 2 prints "while i <= p", p + 1 steps; its text and result have p
        return total * (compression + 1) // of - total * compression // of

    def before(self, number: int) -> tuple[int, int]:
        """Return the (local, compression) steps of a worker before round `number`."""
        done = self.rounds[:number]
        return sum(r.train_steps for r in done), sum(r.compress_steps for r in done)

    @cached_property  # read at every step
    def compress_steps(self) -> int:
        """Steps of all compressions of a worker."""
        return sum(r.compress_steps for r in self.rounds)

    @property
    def steps(self) -> int:
        """All SGD steps of a worker, local and in compressions."""
        return self.iterations + self.compress_steps
