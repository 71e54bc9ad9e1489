"""Worker processes for trials, on this machine or on a Dask cluster."""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from kdlab.codec import Tagged, from_builtins, to_builtins
from kdlab.errors import ClusterError, RunStopped
from kdlab.soft_labels.source import PoolAddress
from kdlab.supervision.children import Child, RankChild
from kdlab.supervision.supervisor import ChildLost, ChildMessage, ChildReady, Supervisor

_MODULE = "kdlab.tuning.trial_worker"
_END_S = 10.0
_MAX_STARTS = 3  # consecutive, of a worker that ends before it is ready
_TICK_S = 0.005  # between polls of pipes
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialWorkerConfig:
    """Config of a worker: simulations import no torch; `gpu` is the only visible GPU, None all."""

    simulates: bool
    gpu: str | None


class TrialWorkerOrder(Tagged):
    """Orders to the process of a worker."""


class TrialOrder(TrialWorkerOrder, kw_only=True):
    """Run one trial: a run folder and its pool, or the spec of a simulation."""

    number: int
    run: str | None = None
    simulation: Mapping[str, object] | None = None
    pool: PoolAddress | None = None


class StopTrial(TrialWorkerOrder):
    """Save and end a trial."""

    number: int


@dataclass(frozen=True, slots=True)
class TrialEnded:
    """A trial has ended, or a worker was lost (`order` is None if it had no trial)."""

    order: int | None  # number of the trial
    state: str  # finished, stopped, failed; no_room: its disk is full; lost: its process is gone
    error: str | None = None
    result: Mapping[str, object] | None = None


StartWorker = Callable[[str, TrialWorkerConfig, Path, Path], RankChild]


class TrialWorkers:
    """Workers that `start` starts; a lost one is restarted.

    `gpus` are this machine's, assigned in turn; empty leaves the choice to trials.
    """

    def __init__(
        self,
        jobs: int,
        folder: Path,
        *,
        simulates: bool,
        gpus: Sequence[str],
        start: StartWorker = Child,
    ) -> None:
        self.folder, self.simulates, self.gpus = folder, simulates, gpus
        self._start_child = start
        self.supervisor: Supervisor[int] = Supervisor()
        self.orders: dict[int, int | None] = {}  # trial by worker; None: idle
        self._starts = dict.fromkeys(range(jobs), 0)
        for worker in range(jobs):
            self._start(worker)

    def _start(self, worker: int) -> None:
        self._starts[worker] += 1
        self.orders[worker] = None
        pulse = self.folder / "pulse" / f"worker-{worker}"
        pulse.parent.mkdir(parents=True, exist_ok=True)
        gpu = self.gpus[worker % len(self.gpus)] if self.gpus else None
        config = TrialWorkerConfig(simulates=self.simulates, gpu=gpu)
        log = self.folder / f"worker-{worker}.log"
        self.supervisor.add(worker, self._start_child(_MODULE, config, log, pulse))

    def idle(self) -> list[int]:
        return [w for w in sorted(self.supervisor.ready) if self.orders[w] is None]

    def send(self, worker: int, order: TrialOrder) -> None:
        self.orders[worker] = order.number
        if not self.supervisor.send(worker, **to_builtins(order)):
            # It may have got the order; its loss is an event.
            self.supervisor.children[worker].kill()

    def stop(self, order: int) -> None:
        """Order a trial to save and end."""
        for worker, at in self.orders.items():
            if at == order:
                self.supervisor.send(worker, **to_builtins(StopTrial(order)))

    def events(self) -> Iterator[TrialEnded]:
        """Yield trials that ended since the last call; ClusterError if a worker never starts."""
        for event in self.supervisor.events():
            match event:
                case ChildReady(worker):
                    self._starts[worker] = 0
                case ChildMessage(worker, message):
                    self.orders[worker] = None
                    yield from_builtins(TrialEnded, message)
                case ChildLost(worker, _, why):
                    yield TrialEnded(self.orders[worker], "lost", why)
                    if self._starts[worker] >= _MAX_STARTS:
                        raise ClusterError(f"A worker for trials does not start. {why}")
                    self._start(worker)

    def close(self) -> None:
        self.supervisor.close(_END_S)


class WorkQueue(ABC, Generic[T]):
    """Orders for workers, executed until none is left; `running` has them by number."""

    saves_s = 0.0  # seconds for running orders to save and end on a stop

    def __init__(self, workers: TrialWorkers, stop: Callable[[], bool]) -> None:
        self.workers, self.stop = workers, stop
        self.running: dict[int, T] = {}

    @abstractmethod
    def begin(self, worker: int) -> None:
        """Send the next order to an idle worker."""

    @abstractmethod
    def on_ended(self, end: TrialEnded) -> None:
        """Handle the end of an order or the loss of a worker."""

    @abstractmethod
    def is_over(self) -> bool:
        """Return whether no further order begins."""

    def update(self) -> None:
        """Read the progress of running orders."""
        return None

    def carry_out(self, stopped: str) -> None:
        """Execute all orders.

        Raises:
            RunStopped: the user stopped it; `stopped` is the message.
            ClusterError: workers do not start.
        """
        while True:
            self._listen()
            self.update()
            if self.stop():
                self._end_all()
                raise RunStopped(stopped)
            for worker in self.workers.idle():
                if not self.is_over():
                    self.begin(worker)
            if not self.running and self.is_over():
                return
            time.sleep(_TICK_S)  # between polls of pipes

    def _listen(self) -> None:
        for end in self.workers.events():
            self.on_ended(end)

    def _end_all(self) -> None:
        for order in self.running:
            self.workers.stop(order)
        deadline = time.monotonic() + self.saves_s
        while self.running and time.monotonic() < deadline:
            self._listen()
            time.sleep(_TICK_S)  # between polls of pipes
