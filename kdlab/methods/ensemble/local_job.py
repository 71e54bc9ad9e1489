"""What a worker of an ensemble is told, and what it says of its work."""

from collections.abc import Callable
from dataclasses import dataclass

from kdlab.data.samples import PlannedSamples
from kdlab.losses.soft_loss import LossSpec
from kdlab.methods.ensemble.exchange import ModelFile
from kdlab.models.model import Normalised
from kdlab.papers.ec_dnn.round_schedule import RoundSchedule
from kdlab.soft_labels.source import SoftLabelSource, TeacherPool
from kdlab.train.aggregation.kind import AggregationSpec
from kdlab.train.checkpoint import OptimizerFacts
from kdlab.train.job import LoopJob
from kdlab.train.position import Start

Opened = Callable[[TeacherPool, PlannedSamples, Start, int], SoftLabelSource]
"""From this batch on, with so many outputs for each sample."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalJob(LoopJob):
    """A local model, on its local data; models are written below the folder.

    Attributes:
        worker: its number, from 0.
        model: with its first weights.
        scratch: makes an empty model of any worker's kind, for the weights of others.
        timetable: of all workers.
        aggregation: how the global model is made.
        loss: of soft labels, where the local training has any.
        opened: a source of some samples' soft labels from the pool of local models.
    """

    worker: int
    model: Normalised
    scratch: Callable[[int], Normalised]
    timetable: RoundSchedule
    aggregation: AggregationSpec
    loss: LossSpec | None
    opened: Opened | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkParts:
    """What a part of a round was made of.

    Attributes:
        samples: of SGD, in the model now; those before a restart are in it too.
        relabel_s, compress_s: processor seconds of this process; of relabelling by a pool the
            seconds it was waited for.
        fetched_bytes: of models of others, or of the outputs a pool sent instead.
        ensemble_loss, model_losses: on the relabelled rows, of the ensemble and of each model.
    """

    samples: int = 0
    relabel_s: float = 0.0
    compress_s: float = 0.0
    fetched_bytes: int = 0
    ensemble_loss: float | None = None
    model_losses: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundWork(WorkParts):
    """What a worker did in one part of a round.

    Attributes:
        round: its number.
        model: that can be fetched.
        loss: mean training loss of its steps (cross entropy with the true labels).
        steps: of SGD, those before a restart included.
        wall_s: of the part, looks at validation and test not counted.
        train_s: processor seconds of this process.
    """

    round: int
    model: ModelFile
    loss: float
    steps: int
    wall_s: float
    train_s: float = 0.0


@dataclass(frozen=True, kw_only=True)
class LocalFacts(OptimizerFacts):
    """A checkpoint's facts; see `LocalWorker` for its counters.

    Attributes:
        taken: batches of its stream.
    """

    taken: int
    steps: int
    round: int
    round_steps: int
    round_samples: int
    spec_hash: str
