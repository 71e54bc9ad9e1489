"""The processes that carry out trials, here or on the workers of a Dask cluster."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from kdlab.messages import typed
from kdlab.supervision.rank_child import LocalRank, RankChild
from kdlab.supervision.supervisor import ChildLost, ChildReady, ChildSaid, Supervisor
from kdlab.tuning.trial_messages import (
    TRIAL_ORDERS,
    StopTrial,
    TrialEnded,
    TrialOrder,
    TrialWorkerConfig,
)

_MODULE = "kdlab.tuning.trial_worker"
_END_S = 10.0
_MAX_STARTS = 3  # in a row, of a worker that ends before it is ready
StartWorker = Callable[[str, TrialWorkerConfig, Path, Path], RankChild]


@dataclass(frozen=True, slots=True)
class TrialWorkerLost:
    """The process is gone, and with it the order it was at; None: it was at none."""

    order: int | None
    error: str
    hopeless: bool  # it never comes up
    state = "lost"  # as an order that has ended has one


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
        start: StartWorker = LocalRank,
    ) -> None:
        self.folder, self.simulates, self.gpus = folder, simulates, gpus
        self._start_child = start
        self.supervisor: Supervisor[int] = Supervisor()
        self.orders: dict[int, int | None] = {}  # by worker; None: nothing to do
        self._starts = dict.fromkeys(range(jobs), 0)
        self._number = 0
        for worker in range(jobs):
            self._start(worker)

    def _start(self, worker: int) -> None:
        self._number += 1
        self._starts[worker] += 1
        log = self.folder / f"worker-{worker}.log"
        pulse = self.folder / "pulse" / f"worker-{self._number}"
        pulse.parent.mkdir(parents=True, exist_ok=True)
        gpu = self.gpus[worker % len(self.gpus)] if self.gpus else None
        config = TrialWorkerConfig(simulates=self.simulates, gpu=gpu)
        self.orders[worker] = None
        self.supervisor.add(worker, self._start_child(_MODULE, config, log, pulse))

    def idle(self) -> list[int]:
        return [w for w in sorted(self.supervisor.ready) if self.orders[w] is None]

    def send(self, worker: int, order: TrialOrder) -> None:
        self.orders[worker] = order.number
        if not self.supervisor.send(worker, **TRIAL_ORDERS.plain(order)):
            # Whether it heard is not known; its loss is an event.
            self.supervisor.children[worker].kill()

    def stop(self, order: int) -> None:
        """Have a trial save and end."""
        for worker, at in self.orders.items():
            if at == order:
                self.supervisor.send(worker, **TRIAL_ORDERS.plain(StopTrial(order)))

    def events(self) -> Iterator[TrialEnded | TrialWorkerLost]:
        for event in self.supervisor.events():
            match event:
                case ChildReady(worker):
                    self._starts[worker] = 0
                case ChildSaid(worker, message):
                    self.orders[worker] = None
                    yield typed(TrialEnded, message)
                case ChildLost(worker, _, why):
                    hopeless = self._starts[worker] >= _MAX_STARTS
                    order = self.orders[worker]
                    if not hopeless:
                        self._start(worker)
                    yield TrialWorkerLost(order, why, hopeless)

    def close(self) -> None:
        self.supervisor.close(_END_S)
