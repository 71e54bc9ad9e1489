"""Time of a round whose workers are parallel machines (section 4.3).

local training     the slowest worker's tau iterations
communication      EC: each fetches K - 1 models; MA: one all-reduce of a model; a centre: one
                   model there and one back, for each worker separately
relabelling        EC only: forward passes of K models over a share mu of the local data
compression        the slowest worker's p iterations; part of training (Eq. 6)
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

# What travels: nothing, an all-reduced mean (Eq. 1), all models (soups, MuLoCo), all models of
# an ensemble (Eq. 4), or each worker's exchange with a centre on its own clock (EASGD)
Combining = Literal["none", "model_average", "all_models", "ensemble", "centre"]


@dataclass(frozen=True, slots=True)
class Network:
    """Network between machines with one full-duplex port each."""

    bytes_per_s: float = 1.25e8  # 1 Gbit/s; the paper has InfiniBand (5.1)
    latency_s: float = 1e-4

    def communication_s(
        self, combining: Combining, workers: int, model_bytes: int
    ) -> float:
        """Seconds of the communication of one round, from what each port receives."""
        # S-DNN (5.2), and E-DNN, whose one communication is at the very end (4.4)
        if combining == "none" or workers < 2:
            return 0.0
        # Messages one after the other; the paper models no latency
        turns = {"model_average": 2 * (workers - 1), "centre": 2}.get(
            combining, workers - 1
        )
        size = self.taken_in(combining, workers, model_bytes)
        return turns * self.latency_s + size / self.bytes_per_s

    def taken_in(self, combining: Combining, workers: int, model_bytes: int) -> float:
        """Bytes that the port of each worker receives in one round."""
        if combining == "none" or workers < 2:
            return 0.0
        if combining == "model_average":  # ring all-reduce of the mean of Eq. 1
            return 2 * (workers - 1) * model_bytes / workers
        if combining == "centre":  # full duplex: sending takes no time beside receiving
            return model_bytes
        return (workers - 1) * model_bytes  # Algorithm 1: w_bar is all K models


@dataclass(frozen=True, slots=True)
class Busy:
    """Seconds that one worker computed in one round."""

    train: float  # tau iterations on Eq. 5, its z-bar included
    relabel: float = 0.0  # "relabeling time" of 4.3
    compress: float = 0.0  # p iterations on Eq. 6


def round_s(workers: Sequence[Busy], communication_s: float) -> float:
    """Seconds of a round: all wait for the slowest before a communication, and at the end."""
    trained = max(w.train for w in workers)  # synchronous case (4.1)
    # 4.3 takes the maximal time of relabelling; compression follows on the same worker
    return trained + communication_s + max(w.relabel + w.compress for w in workers)
