"""Errors and costs of a training of several local models."""

from dataclasses import dataclass

from kdlab.codec import Amount, Count
from kdlab.papers.ec_dnn import metrics


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundErrors:
    """Test and validation errors in percent at a communication.

    Losses are mean cross entropies on test images; by Eq. 3 an ensemble's is at most the mean of
    its models'.
    """

    round: int  # number of the round
    iterations: int  # local iterations of a worker so far
    parallel_s: float  # overall time on machines side by side (4.3)
    locals: list[float]  # error of each local model, before they are combined
    global_: float  # error of the global model
    compressed: list[float]  # error of each local model after its reset; empty without one
    # Error of the local model with the smallest training loss (_L) after Algorithm 1:
    # compressed, if the round compresses
    chosen: float
    validation_locals: list[float]
    validation_global: float
    local_losses: list[float]
    global_loss: float
    models: list[int]  # the K' workers

    @property
    def diff_lg(self) -> float:
        """Diff_LG, Eq. 7."""
        return metrics.better_than_locals(self.locals, self.global_)

    @property
    def diff_lc(self) -> float | None:
        """Diff_LC, Eq. 8; None without compression."""
        if len(self.compressed) != len(self.locals):
            return None
        return metrics.compression_gain(self.locals, self.compressed)


@dataclass(slots=True)
class CostTotals:
    """Costs of a training so far; seconds on machines side by side."""

    parallel_s: Amount = 0.0
    communication_s: Amount = 0.0
    relabel_s: Amount = 0.0  # of the slowest worker of each round
    compress_s: Amount = 0.0
    train_s: Amount = 0.0
    fetched_bytes: Count = 0  # models fetched by all workers
    exchanged_bytes: Count = 0  # received by each worker's port, by the best known exchange
    samples: Count = 0
    steps: Count = 0
    iterations: Count = 0  # local iterations of each worker: t
