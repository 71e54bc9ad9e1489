"""What a training of several local models says of itself: errors, and what they cost."""

from dataclasses import dataclass

from kdlab.codec import Amount, Count
from kdlab.papers.ec_dnn import metrics


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundErrors:
    """Errors in percent on test images, and on validation images, at a communication.

    Losses are the mean cross entropy on test images; by Eq. 3 an ensemble's is never above the
    mean of its models'.
    """

    round: int  # its number
    iterations: int  # local ones of a worker until then
    parallel_s: float  # overall time on machines side by side (4.3)
    locals: list[float]  # error of each local model, before anything is combined
    global_: float  # of the global model
    compressed: list[float]  # of each local model after its reset; empty without one
    # Error of the local model with the smallest training loss (_L), as Algorithm 1 leaves it:
    # compressed, where the round compresses
    chosen: float
    validation_locals: list[float]
    validation_global: float
    local_losses: list[float]
    global_loss: float
    models: list[int]  # K' workers

    @property
    def diff_lg(self) -> float:
        """Eq. 7."""
        return metrics.better_than_locals(self.locals, self.global_)

    @property
    def diff_lc(self) -> float | None:
        """Eq. 8; None where nothing was compressed."""
        if len(self.compressed) != len(self.locals):
            return None
        return metrics.compression_gain(self.locals, self.compressed)


@dataclass(slots=True)
class CostTotals:
    """What a training has cost so far. Seconds on machines side by side."""

    parallel_s: Amount = 0.0
    communication_s: Amount = 0.0
    relabel_s: Amount = 0.0  # the slowest worker's, of each round
    compress_s: Amount = 0.0
    train_s: Amount = 0.0
    fetched_bytes: Count = 0  # of models, by all workers of this engine
    exchanged_bytes: Count = (
        0  # that each worker's port takes in, by the best known exchange
    )
    samples: Count = 0
    steps: Count = 0
    iterations: Count = 0  # local ones of each worker: t
