"""Job of a worker of an ensemble, and the reports of its work."""

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
    """Costs of work in seconds, measured beforehand on an idle machine.

    The time of a training is then its work times these costs (section 4.3), so its workers may run
    one after the other, or beside anything else. Fetching models and averaging weights cost
    nothing in every method.
    """

    step_s: float  # one SGD step
    row_s: float  # one forward pass of one model on one image


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalJob(LoopJob):
    """Training of a local model on its local data; models are written below the folder."""

    worker: int  # its number, from 0
    model: Normalised  # with its first weights
    # Makes a model of any worker's architecture, for weights of others
    scratch: Callable[[int], Normalised]
    timetable: RoundSchedule  # of all workers
    aggregation: AggregationSpec  # how the global model is made
    loss: LossSpec | None  # on soft labels, where local training has any
    prices: UnitCosts | None = None  # None: processor time is measured
    recalibrate: int = 0  # images to recalibrate batch norms of averaged weights on


def worker_folder(folder: Path, worker: int) -> Path:
    """Return the folder of a worker in that of its member."""
    return folder / f"worker-{worker}"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkParts:
    """Work and results of a part of a round."""

    samples: int = 0  # of SGD steps in the model now, those before a restart included
    relabel_s: float = 0.0  # processor seconds of this process
    compress_s: float = 0.0  # likewise
    fetched_bytes: int = 0  # of models of others
    ensemble_loss: float | None = None  # on the relabelled rows
    model_losses: tuple[float, ...] = ()  # of each model, on the relabelled rows


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundWork(WorkParts):
    """Report of a worker on one part of a round."""

    round: int  # its number
    model: ModelFile
    loss: float  # mean training loss of its steps (cross entropy with the true labels)
    steps: int  # SGD steps, those before a restart included
    wall_s: float  # of the part, without evaluation on validation and test images
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
    losses: tuple[float, ...] = ()  # of steps since the last report
