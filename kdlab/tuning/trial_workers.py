"""The processes that carry out trials, here or on the workers of a Dask cluster."""

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
_MAX_STARTS = 3  # in a row, of a worker that ends before it is ready
_TICK_S = 0.005  # between looks at pipes
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialWorkerConfig:
    """Simulations need no torch; `gpu` is the only one that it sees, and None is all."""

    simulates: bool
    gpu: str | None


class TrialWorkerOrder(Tagged):
    """To the process of a worker for trials."""


class TrialOrder(TrialWorkerOrder, kw_only=True):
    """One trial: a run folder and the pool that teaches it, or the spec of a simulation."""

    number: int
    run: str | None = None
    simulation: Mapping[str, object] | None = None
    pool: PoolAddress | None = None


class StopTrial(TrialWorkerOrder):
    """Save and end."""

    number: int


@dataclass(frozen=True, slots=True)
class TrialEnded:
    """An order was carried out, one way or another; None: a worker was lost that had none."""

    order: int | None  # number of the trial
    state: str  # finished, stopped, failed; no_room: its disk is full; lost: its process is gone
    error: str | None = None
    result: Mapping[str, object] | None = None


StartWorker = Callable[[str, TrialWorkerConfig, Path, Path], RankChild]


class TrialWorkers:
    """So many workers, here or where `start` puts them; a lost one is started again.

    GPUs are those of this machine, shared out in turn; none leaves that to the trials.
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
        self.orders: dict[int, int | None] = {}  # by worker; None: nothing to do
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
            # Whether it heard is not known; its loss is an event.
            self.supervisor.children[worker].kill()

    def stop(self, order: int) -> None:
        """Have a trial save and end."""
        for worker, at in self.orders.items():
            if at == order:
                self.supervisor.send(worker, **to_builtins(StopTrial(order)))

    def events(self) -> Iterator[TrialEnded]:
        """What ended since the last call; ClusterError where a worker never comes up."""
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
                        raise ClusterError(f"A worker for trials does not come up. {why}")
                    self._start(worker)

    def close(self) -> None:
        self.supervisor.close(_END_S)


class WorkQueue(ABC, Generic[T]):
    """Orders that workers carry out until there is none left; `running` by their number."""

    saves_s = 0.0  # that those under way have to save and end when it is stopped

    def __init__(self, workers: TrialWorkers, stop: Callable[[], bool]) -> None:
        self.workers, self.stop = workers, stop
        self.running: dict[int, T] = {}

    @abstractmethod
    def begin(self, worker: int) -> None:
        """Give the next order to a worker that has none."""

    @abstractmethod
    def hear(self, end: TrialEnded) -> None:
        """One that was running has ended, or a worker is lost."""

    @abstractmethod
    def is_over(self) -> bool:
        """Whether none begins any more."""

    def look(self) -> None:
        """At what those under way have come to."""
        return None

    def carry_out(self, stopped: str) -> None:
        """All of them.

        Raises:
            RunStopped: the user asked, said in these words.
            ClusterError: workers do not come up.
        """
        while True:
            self._listen()
            self.look()
            if self.stop():
                self._end_all()
                raise RunStopped(stopped)
            for worker in self.workers.idle():
                if not self.is_over():
                    self.begin(worker)
            if not self.running and self.is_over():
                return
            time.sleep(_TICK_S)  # between looks at pipes

    def _listen(self) -> None:
        for end in self.workers.events():
            self.hear(end)

    def _end_all(self) -> None:
        for order in self.running:
            self.workers.stop(order)
        deadline = time.monotonic() + self.saves_s
        while self.running and time.monotonic() < deadline:
            self._listen()
            time.sleep(_TICK_S)  # between looks at pipes
