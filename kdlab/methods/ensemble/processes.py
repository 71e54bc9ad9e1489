"""Workers of local models as processes, here or on a Dask cluster; see `model_workers`."""

import time
from collections.abc import Iterator
from dataclasses import replace

from kdlab.cluster.chaos import Target
from kdlab.codec import from_builtins, to_builtins
from kdlab.errors import KdlabError, RunStopped
from kdlab.events.ensemble import WorkerHangs, WorkerStarted
from kdlab.experiment.groups import start_rank
from kdlab.experiment.method import MemberTraining
from kdlab.methods.ensemble.model_workers import RoundOrder, RoundReport, WorkerEvent
from kdlab.soft_labels.source import PoolAddress
from kdlab.supervision.heartbeat import Heartbeat
from kdlab.supervision.rank_messages import (
    CarryOut,
    RankAnswer,
    RankDone,
    RankFailed,
    RankStopped,
    StopTraining,
)
from kdlab.supervision.supervisor import (
    ChildLost,
    ChildMessage,
    ChildReady,
    ChildSilent,
    Supervisor,
)

_TICK_S = 0.02
_END_S = 5.0
_START_S = 120.0  # for imports and data, on a busy machine
_MODULE = "kdlab.methods.ensemble.rank"


class Processes:
    """One process for each worker; a lost one is reported, and restarted by `start`.

    A busy worker that is silent for longer than `hang_s` is killed, or for two minutes before its
    first sign of life. If its machine does not answer, the kill is repeated after the same time,
    until the worker continues or is lost.
    """

    def __init__(self, training: MemberTraining, hang_s: float) -> None:
        self.training, self.hang_s = training, hang_s
        self.pool = PoolAddress.from_pool(training.pool)
        self.supervisor: Supervisor[int] = Supervisor()
        self._started: dict[int, int] = {}

    def targets(self) -> list[Target]:
        """Return the processes that chaos can hit."""
        return [
            Target(f"worker-{k}", c.pid) for k, c in list(self.supervisor.children.items())
        ]

    def start(self, worker: int) -> None:
        number = self._started[worker] = self._started.get(worker, -1) + 1
        name = f"worker-{worker}-process-{number}"
        pulse = self.training.folder / "workers" / "pulse" / name
        child = start_rank(self.training, _MODULE, name, pulse)
        self.supervisor.add(worker, child)
        self.supervisor.expect(worker)
        self.training.emit(WorkerStarted(worker=worker, pid=child.pid, again=number))

    def send(self, order: RoundOrder) -> None:
        self.supervisor.expect(order.worker)
        train = CarryOut(to_builtins(replace(order, labels=self.pool)))
        # The result is ignored: where sending fails, a ChildLost follows.
        self.supervisor.send(order.worker, **to_builtins(train))

    def events(self) -> Iterator[WorkerEvent]:
        """Yield the events since the last call; wait briefly if there are none.

        Raises:
            RunStopped, KdlabError: reported by a worker.
        """
        events = list(self._poll())
        if not events:
            time.sleep(_TICK_S)  # between polls of pipes and processes
        yield from events

    def _poll(self) -> Iterator[WorkerEvent]:
        for event in self.supervisor.events(self._patience):
            match event:
                case ChildReady(worker):
                    self.supervisor.rest(worker)
                    yield event
                case ChildMessage(worker, message):
                    yield from self._on_message(worker, RankAnswer.from_builtins(message))
                case ChildSilent(worker, silent_s):
                    self.training.emit(WorkerHangs(worker=worker, silent_s=silent_s))
                    self.supervisor.children[worker].kill()
                    self.supervisor.expect(worker)
                case ChildLost():
                    yield event

    def _patience(self, sign: Heartbeat) -> float:
        # Before its first sign of life it imports, opens the data and builds the model.
        return self.hang_s if sign.generation else max(self.hang_s, _START_S)

    def _on_message(self, worker: int, message: RankAnswer) -> Iterator[WorkerEvent]:
        match message:
            case RankDone(report):
                self.supervisor.rest(worker)
                yield from_builtins(RoundReport, report)
            case RankStopped(why):
                raise RunStopped(why)
            case RankFailed(why, exit_code):
                error = KdlabError(f"Worker {worker}: {why}")
                error.exit_code = exit_code
                raise error

    def close(self) -> None:
        """End all workers, after the busy ones have saved their state."""
        deadline = time.monotonic() + _END_S
        for worker in self.supervisor.busy:
            self.supervisor.send(worker, **to_builtins(StopTraining()))
        while self.supervisor.busy and time.monotonic() < deadline:
            for event in self.supervisor.events():
                if isinstance(event, ChildMessage):  # saved; a lost one is no longer busy
                    self.supervisor.rest(event.name)
            time.sleep(_TICK_S)  # between polls of pipes
        self.supervisor.close(max(0.0, deadline - time.monotonic()))
