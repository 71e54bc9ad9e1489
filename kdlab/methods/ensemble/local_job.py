"""What a worker of an ensemble is told, and what it says of its work."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from kdlab.losses.soft_loss import LossSpec
from kdlab.methods.ensemble.exchange import ModelFile
from kdlab.models.model import Normalised
from kdlab.papers.ec_dnn.round_schedule import RoundSchedule
from kdlab.train.aggregation.kind import AggregationSpec
from kdlab.train.checkpoint import OptimizerFacts
from kdlab.train.job import LoopJob


@dataclass(frozen=True, slots=True)
class UnitCosts:
    """What work costs in seconds, measured beforehand with nothing beside it.

    With them the time of a training is what it did times what that costs (section 4.3), so its
    workers may go on one after the other, or beside anything else. Reading the models of others and
    averaging weights cost nothing, whatever the method.
    """

    step_s: float  # of one SGD step
    row_s: float  # of one model on one image, forward


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalJob(LoopJob):
    """A local model, on its local data; models are written below the folder."""

    worker: int  # its number, from 0
    model: Normalised  # with its first weights
    # Makes an empty model of any worker's kind, for the weights of others
    scratch: Callable[[int], Normalised]
    timetable: RoundSchedule  # of all workers
    aggregation: AggregationSpec  # how the global model is made
    loss: LossSpec | None  # of soft labels, where the local training has any
    prices: UnitCosts | None = None  # of its work; None: its processor's time is taken
    recalibrate: int = 0  # images that the batch norms of an average of weights are shown


def own_folder(folder: Path, worker: int) -> Path:
    """What a worker keeps for itself, in the folder of its member."""
    return folder / f"worker-{worker}"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkParts:
    """What a part of a round was made of."""

    samples: int = 0  # of SGD, in the model now; those before a restart are in it too
    # relabel_s and compress_s: processor seconds of this process
    relabel_s: float = 0.0
    compress_s: float = 0.0
    fetched_bytes: int = 0  # of models of others
    # ensemble_loss and model_losses: on the relabelled rows, of the ensemble and of each
    # model
    ensemble_loss: float | None = None
    model_losses: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundWork(WorkParts):
    """What a worker did in one part of a round."""

    round: int  # its number
    model: ModelFile  # that can be fetched
    loss: float  # mean training loss of its steps (cross entropy with the true labels)
    steps: int  # of SGD, those before a restart included
    wall_s: float  # of the part, looks at validation and test not counted
    train_s: float = 0.0  # processor seconds of this process


@dataclass(frozen=True, kw_only=True)
class LocalFacts(OptimizerFacts):
    """A checkpoint's facts; see `LocalWorker` for its counters."""

    taken: int  # batches of its stream
    steps: int
    round: int
    round_steps: int
    round_samples: int
    spec_hash: str
    losses: tuple[float, ...] = ()  # of its steps since the last word
