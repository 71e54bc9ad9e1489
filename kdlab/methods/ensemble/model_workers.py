"""Workers of local models as a round driver uses them: orders in, reports out.

`InProcessWorkers` runs all of them in this process, one after the other; `processes.py` runs each
in its own process. The results are equal.
"""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from kdlab.data.images import ImageData
from kdlab.methods.ensemble.exchange import ModelFile, keep_momentum
from kdlab.methods.ensemble.local_job import RoundWork
from kdlab.methods.ensemble.stacked import StackedSgd
from kdlab.methods.ensemble.worker import LocalWorker
from kdlab.models.model import Normalised
from kdlab.papers.ec_dnn.round_schedule import Round
from kdlab.soft_labels.source import PoolAddress, SoftLabelSource
from kdlab.supervision.supervisor import ChildLost, ChildReady


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundOrder:
    """Order to one worker."""

    what: str  # "train" a round or "combine" models
    worker: int
    round: Round  # of the timetable
    models: tuple[ModelFile, ...]  # to be combined, or those whose mean is z-bar
    centre: ModelFile | None = None  # file that has the centre beside it, if there is one
    look: str | None = None  # file for the outputs on validation and test images
    final: bool = False  # also measure the training loss on the local data
    keep: bool = True  # save the reset point on disk
    spare: bool = False  # save the momentum too, for a process that replaces the worker
    labels: PoolAddress | None = None  # pool of the experiment's soft labels, if served

    @property
    def trained(self) -> int:
        """Iterations of the round that precede this order."""
        return self.round.train_steps if self.what == "combine" else 0


@dataclass(frozen=True, slots=True)
class RoundReport:
    """Report that an order was carried out."""

    worker: int
    what: str
    done: RoundWork
    train_loss: float | None = None  # mean cross entropy on the local data, if requested


WorkerEvent = ChildReady[int] | RoundReport | ChildLost[int]


class ModelWorkers(Protocol):
    def start(self, worker: int) -> None:
        """Start a worker; `ChildReady` follows."""

    def send(self, order: RoundOrder) -> None: ...

    def events(self) -> Iterator[WorkerEvent]:
        """Yield the events since the last call; wait briefly if there are none."""

    def close(self) -> None: ...


def execute(worker: LocalWorker, order: RoundOrder, source: SoftLabelSource) -> RoundReport:
    """Carry out an order in the process of the worker.

    Raises:
        RunStopped, KdlabError: from the worker.
    """
    if order.what == "train":
        done = worker.train(order.round, order.models, source)
    else:
        done = worker.combine(order.round, order.models, order.keep, order.centre)
    return _report(worker, order, done)


def _report(worker: LocalWorker, order: RoundOrder, done: RoundWork) -> RoundReport:
    if order.look is not None:
        model = worker.global_model() if order.what == "combine" else worker.model
        save_outputs(worker, model, Path(order.look))
    loss = worker.sgd.train_loss() if order.final else None
    if order.spare:
        keep_momentum(done.model, worker.sgd.train_step)
    return RoundReport(order.worker, order.what, done, loss)


def save_outputs(worker: LocalWorker, model: Normalised, path: Path) -> None:
    """Write the probabilities of a model on all images of `evaluation_ids`."""
    data = worker.job.samples.data
    outputs = worker.sgd.probabilities(data.inputs[evaluation_ids(data)], model).numpy()
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".half")
    with temporary.open("wb") as file:
        np.save(file, outputs.astype(np.float32))
    temporary.rename(path)


def evaluation_ids(data: ImageData) -> NDArray[np.int64]:
    """Return the ids of validation images, then those of test images."""
    return np.concatenate([data.validation, data.test])


class InProcessWorkers:
    """Workers in this process, one after the other; each resumes from its folder.

    With `stacked` they take the local steps of a round at once, on stacked weights.
    """

    def __init__(
        self,
        make: Callable[[int], LocalWorker],
        source: Callable[[LocalWorker], SoftLabelSource],
        *,
        stacked: bool = False,
    ) -> None:
        self._make, self._source, self._stacked = make, source, stacked
        self._at_once: StackedSgd | None = None
        self.workers: dict[int, LocalWorker] = {}
        self._sources: dict[int, SoftLabelSource] = {}
        self._orders: deque[RoundOrder] = deque()
        self._events: deque[WorkerEvent] = deque()

    def start(self, worker: int) -> None:
        self.workers[worker] = self._make(worker)
        self._events.append(ChildReady(worker))

    def send(self, order: RoundOrder) -> None:
        self._orders.append(order)

    def events(self) -> Iterator[WorkerEvent]:
        while self._events:
            yield self._events.popleft()
        first = self._orders[0] if self._orders else None
        alike = first is not None and all(
            (o.what, o.round) == ("train", first.round) for o in self._orders
        )
        if self._stacked and alike and len(self._orders) > 1:
            yield from self._train_at_once()
        elif first is not None:
            order = self._orders.popleft()
            worker = self.workers[order.worker]
            yield execute(worker, order, self._source_of(worker, order))

    def _train_at_once(self) -> Iterator[WorkerEvent]:
        pairs = [(self.workers[order.worker], order) for order in self._orders]
        self._orders.clear()
        sources = [self._source_of(*pair) for pair in pairs]
        sgds = [worker.sgd for worker, _ in pairs]
        if self._at_once is None or self._at_once.sgds != sgds:
            self._at_once = StackedSgd(sgds)
        each = [
            worker.steps(order.round, order.models, source)
            for (worker, order), source in zip(pairs, sources, strict=True)
        ]
        for pair, work in zip(pairs, self._at_once.round(each), strict=True):
            yield _report(*pair, work)

    def _source_of(self, worker: LocalWorker, order: RoundOrder) -> SoftLabelSource:
        number = worker.job.worker
        if number not in self._sources:
            worker.restore(order.round.number, order.trained)
            self._sources[number] = self._source(worker)
        return self._sources[number]

    def close(self) -> None:
        for source in self._sources.values():
            source.close()
        self._sources.clear()
