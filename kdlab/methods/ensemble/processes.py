"""Local models as processes, here or on a Dask cluster; see `model_workers`."""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from typing import Any

from kdlab.cluster.chaos import Target
from kdlab.cluster.heartbeat import Heartbeat
from kdlab.cluster.rank_child import RankChild, start_here
from kdlab.cluster.supervisor import (
    ChildLost,
    ChildReady,
    ChildSaid,
    ChildSilent,
    Supervisor,
)
from kdlab.errors import KdlabError, RunStopped
from kdlab.events.ensemble import WorkerHangs, WorkerStarted
from kdlab.experiment.groups import address_of
from kdlab.experiment.method import MemberTraining
from kdlab.methods.ensemble.model_workers import (
    Event,
    RoundOrder,
    RoundReport,
    WorkerLost,
    WorkerReady,
    files,
)
from kdlab.methods.ensemble.worker import RoundWork

_LOOK_S = 0.02
_END_S = 5.0
_START_S = 120.0  # for imports and data, on a machine with much to do
_MODULE = "kdlab.methods.ensemble.rank"


class Processes:
    """Each worker a process; a lost one is told of, and started again when asked for.

    Args:
        training: whose workers they are, where they are started, and their teachers.
        hang_s: a busy worker that is silent for longer is killed; one that has not shown a
            first sign of life has two minutes.
    """

    def __init__(self, training: MemberTraining, hang_s: float) -> None:
        self.training, self.hang_s = training, hang_s
        self.pool = address_of(training.pool)
        self.supervisor: Supervisor[int] = Supervisor()
        self._started: dict[int, int] = {}

    def targets(self) -> list[Target]:
        """Whom chaos can hit."""
        return [
            Target(f"worker-{k}", c.pid) for k, c in list(self.supervisor.children.items())
        ]

    def start(self, worker: int) -> None:
        number = self._started[worker] = self._started.get(worker, -1) + 1
        training, name = self.training, f"worker-{worker}-process-{number}"
        folder = training.folder / "workers"
        (folder / "pulse").mkdir(parents=True, exist_ok=True)
        member = training.member.name
        config = {"run": str(training.run.path), "member": member, "name": name}
        log, pulse = training.folder / f"{name}.log", folder / "pulse" / name
        start: Callable[..., RankChild] = start_here
        if training.hosts is not None:
            start = training.hosts.start
        child = start(_MODULE, config, log, pulse)
        self.supervisor.add(worker, child)
        self.supervisor.expect(worker)
        training.emit(WorkerStarted(worker=worker, pid=child.pid))

    def tell(self, order: RoundOrder) -> None:
        self.supervisor.expect(order.worker)
        train = {"order": asdict(order), "pool": self.pool}
        self.supervisor.tell(order.worker, train=train)  # or its loss is an event already

    def events(self) -> Iterator[Event]:
        """What happened since; waits for a moment when nothing has.

        Raises:
            RunStopped, KdlabError: a worker says so.
        """
        found = list(self._look())
        if not found:
            time.sleep(_LOOK_S)  # between looks at pipes and processes
        yield from found

    def _look(self) -> Iterator[Event]:
        for event in self.supervisor.events(self._patience):
            match event:
                case ChildReady(worker):
                    self.supervisor.rest(worker)
                    yield WorkerReady(worker)
                case ChildSaid(worker, message):
                    yield from self._on_message(worker, message)
                case ChildSilent(worker, silent_s):
                    self.training.emit(WorkerHangs(worker=worker, silent_s=silent_s))
                    self.supervisor.children[worker].kill()
                case ChildLost(worker, _, why):
                    yield WorkerLost(worker, why)

    def _patience(self, sign: Heartbeat) -> float:
        # Before its first sign of life it imports, opens the data and builds the model.
        return self.hang_s if sign.generation else max(self.hang_s, _START_S)

    def _on_message(self, worker: int, message: Mapping[str, Any]) -> Iterator[Event]:
        if message.get("done") is not None:
            self.supervisor.rest(worker)
            yield _did(message["done"])
        elif "stopped" in message:
            raise RunStopped(message["stopped"])
        elif "error" in message:
            error = KdlabError(f"Worker {worker}: {message['error']}")
            error.exit_code = int(message.get("exit_code", 1))
            raise error

    def close(self) -> None:
        """Busy ones save their state first; then all end."""
        deadline = time.monotonic() + _END_S
        for worker in self.supervisor.busy:
            self.supervisor.tell(worker, stop=True)
        while self.supervisor.busy and time.monotonic() < deadline:
            for event in self.supervisor.events():
                if isinstance(event, ChildSaid):  # saved; who is lost is busy no more
                    self.supervisor.rest(event.name)
            time.sleep(_LOOK_S)  # between looks at pipes
        self.supervisor.close(max(0.0, deadline - time.monotonic()))


def _did(facts: dict[str, Any]) -> RoundReport:
    (model,) = files([facts["done"]["model"]])
    losses = tuple(facts["done"]["model_losses"])
    done = RoundWork(**facts["done"] | {"model": model, "model_losses": losses})
    return RoundReport(facts["worker"], facts["what"], done, facts["train_loss"])
