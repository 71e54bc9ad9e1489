"""Local models as processes, here or on a Dask cluster; see `model_workers`."""

import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any

from kdlab.cluster.chaos import Target
from kdlab.cluster.rank_child import RankChild, start_here
from kdlab.errors import KdlabError, RunStopped
from kdlab.events.ensemble import WorkerHangs, WorkerStarted
from kdlab.experiment.groups import pool_facts
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
        self.pool = pool_facts(training.pool)
        self.children: dict[int, RankChild] = {}
        self._started: dict[int, int] = {}
        self._busy: dict[int, float] = {}  # since when, or since its newest sign of life

    def targets(self) -> list[Target]:
        """Whom chaos can hit."""
        return [Target(f"worker-{k}", c.pid) for k, c in list(self.children.items())]

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
        child = self.children[worker] = start(_MODULE, config, log, pulse)
        training.emit(WorkerStarted(worker=worker, pid=child.pid))
        self._busy[worker] = time.monotonic()

    def tell(self, order: RoundOrder) -> None:
        facts = asdict(order)
        self._busy[order.worker] = time.monotonic()
        child = self.children.get(order.worker)
        if child is not None:  # else its loss is news already
            child.tell(train={"order": facts, "pool": self.pool})

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
        now = time.monotonic()
        for worker, child in list(self.children.items()):
            for message in child.said():
                yield from self._heard(worker, message)
            if not child.alive():
                for message in child.said():  # its last words
                    yield from self._heard(worker, message)
                del self.children[worker]
                self._busy.pop(worker, None)
                yield WorkerLost(worker, child.exit_report("ended"))
            elif worker in self._busy:
                self._look_at(worker, child, now)

    def _look_at(self, worker: int, child: RankChild, now: float) -> None:
        sign = child.sign()
        since = max(self._busy[worker], sign.time)
        # Before its first sign of life it imports, opens the data and builds the model.
        patience = self.hang_s if sign.generation else max(self.hang_s, _START_S)
        if now - since > patience:
            self.training.emit(WorkerHangs(worker=worker, silent_s=now - since))
            child.kill()
            self._busy.pop(worker)

    def _heard(self, worker: int, message: dict[str, Any]) -> Iterator[Event]:
        if "ready" in message:
            self._busy.pop(worker, None)
            yield WorkerReady(worker)
        elif message.get("done") is not None:
            self._busy.pop(worker, None)
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
        for worker in self._busy:
            if worker in self.children:
                self.children[worker].tell(stop=True)
        while self._busy and time.monotonic() < deadline:
            for worker, child in self.children.items():
                said = [m for m in child.said() if "ready" not in m]
                if said or not child.alive():
                    self._busy.pop(worker, None)
            time.sleep(_LOOK_S)  # between looks at pipes
        for child in self.children.values():
            child.tell(end=True)
        for child in self.children.values():
            child.stop(max(0.1, deadline - time.monotonic()))
        self.children.clear()


def _did(facts: dict[str, Any]) -> RoundReport:
    (model,) = files([facts["done"]["model"]])
    losses = tuple(facts["done"]["model_losses"])
    done = RoundWork(**facts["done"] | {"model": model, "model_losses": losses})
    return RoundReport(facts["worker"], facts["what"], done, facts["train_loss"])
