"""What a round takes when workers are machines side by side (section 4.3).

local training     the slowest worker's tau iterations
communication      EC: each fetches K - 1 models; MA: one all-reduce of a model; a centre: one
                   model there and one back, of each worker by itself
relabelling        EC alone: K models forward over a share of the local data
compression        the slowest worker's p iterations; part of training (Eq. 6)
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

# "centre": no worker waits for another one; each exchanges with the centre by its own clock
Combining = Literal["none", "model_average", "all_models", "ensemble", "centre"]


@dataclass(frozen=True, slots=True)
class Network:
    """Between machines: one port each, in full duplex."""

    bytes_per_s: float = 1.25e8  # of 1 Gbit/s
    latency_s: float = 1e-4

    def communication_s(
        self, combining: Combining, workers: int, model_bytes: int
    ) -> float:
        """Seconds of one round: what each worker's port has to take in.

        A ring all-reduce takes in 2 (K - 1) / K of a model, an exchange of all models K - 1.
        """
        if combining == "none" or workers < 2:
            return 0.0
        turns = {"model_average": 2 * (workers - 1), "centre": 2}.get(
            combining, workers - 1
        )
        size = self.taken_in(combining, workers, model_bytes)
        return turns * self.latency_s + size / self.bytes_per_s

    def taken_in(self, combining: Combining, workers: int, model_bytes: int) -> float:
        """Bytes that each worker's port takes in in one round."""
        if combining == "none" or workers < 2:
            return 0.0
        if combining == "model_average":
            return 2 * (workers - 1) * model_bytes / workers
        if combining == "centre":
            return model_bytes
        return (workers - 1) * model_bytes


@dataclass(frozen=True, slots=True)
class Busy:
    """One worker in one round: seconds it computed."""

    train: float
    relabel: float = 0.0
    compress: float = 0.0


def round_s(workers: Sequence[Busy], communication_s: float) -> float:
    """All wait for the slowest before a communication, and again at the end of the round."""
    trained = max(w.train for w in workers)  # 4.3
    return trained + communication_s + max(w.relabel + w.compress for w in workers)
