"""A rank of a group: a process that waits for orders and executes them.

It imports everything, announces that it is ready, and waits. On an order to train it joins the
process group, loads the newest checkpoint and trains until the training, the generation or the
process ends; then it waits again. So one process may serve many generations, and a spare one
takes over within the time of a rendezvous.
"""

import logging
import os
import queue
import signal
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import Store
from torch.distributed.rendezvous import rendezvous

from kdlab.changes.change import CONTROL
from kdlab.changes.queue import ChangeQueue
from kdlab.codec import from_builtins, to_builtins
from kdlab.errors import KdlabError, RunStopped
from kdlab.events.event import Emit, Event
from kdlab.events.general import Warned
from kdlab.events.log import EventLog, MemberLog
from kdlab.events.teachers import AllTeachersLost, TeacherJoined, TeacherLeft, TeacherLost
from kdlab.experiment.components import accept_components
from kdlab.experiment.folder import RunFolder
from kdlab.experiment.setup import TrainingSetup
from kdlab.experiment.spec import Member, spec_of
from kdlab.supervision import process_groups
from kdlab.supervision.children import announce, configured
from kdlab.supervision.heartbeat import HeartbeatFile
from kdlab.supervision.rank_messages import (
    CarryOut,
    GenerationOrder,
    GroupBroken,
    MachineFailed,
    RankAnswer,
    RankConfig,
    RankDone,
    RankFailed,
    RankOrder,
    RankSaved,
    RankStopped,
    SaveGeneration,
    StopTraining,
)
from kdlab.train.aggregation.ranks import GenerationEnds

OrderType = TypeVar("OrderType")

PATIENCE = timedelta(minutes=30)  # for other ranks; the supervisor detects hangs sooner
_LOST = 70  # exit code of a rank whose machine failed
_FROM_ALL_RANKS = (TeacherLost, AllTeachersLost, Warned, TeacherJoined, TeacherLeft)


class RankProcess(ABC, Generic[OrderType]):
    """Base of processes that can be ranks of one member's training.

    Args:
        run: folder of the run.
        member: name of the member.
        beat: called with (generation, step) as a heartbeat.
        stop: returns whether the user asked this process to stop.
    """

    takes: type[OrderType]  # type of its orders

    def __init__(
        self,
        run: RunFolder,
        member: str,
        beat: Callable[[int, int], None],
        stop: Callable[[], bool] = lambda: False,
    ) -> None:
        self.run, self.beat, self._stop = run, beat, stop
        self.stopping = self.saving = self.leaving = False
        self.spec = spec_of(run)
        self.member: Member = next(m for m in self.spec.members() if m.name == member)
        self.folder = run.member(member)
        self.log = MemberLog(EventLog(run.events), member)
        self.setup = TrainingSetup(self.spec, emit=self.log.emit, stop=self.stops)
        self.hash = self.setup.spec_hash

    @abstractmethod
    def generation(self, order: OrderType) -> object:
        """Train one generation to its end; the master returns the result, a dataclass.

        Raises:
            GenerationEnds: a rank joins or leaves; all have saved.
            RunStopped, KdlabError, RuntimeError: from the training loop and Gloo.
        """

    def stops(self) -> bool:
        return self.stopping or self._stop()

    def backend(self, device: torch.device, on_this_machine: int) -> str:
        """Return the rank's backend: NCCL if each rank on this machine has its own GPU."""
        enough = torch.cuda.device_count() >= on_this_machine
        return "nccl" if device.type == "cuda" and enough else "gloo"

    @contextmanager
    def process_group(self, order: GenerationOrder, device: torch.device) -> Iterator[None]:
        """Context manager: the default process group exists inside the block."""
        url, rank, world = order.meet_at, order.rank, order.world
        store, *_ = next(iter(rendezvous(url, rank, world, timeout=PATIENCE)))
        store.set_timeout(PATIENCE)  # torch sets it only for stores that it creates
        usable, secret = self.backend(device, order.local_world), order.secret.encode()
        backend = agreed_backend(store, usable, rank, world)
        process_groups.begin(store, backend, rank, world, secret, PATIENCE)
        try:
            yield
        finally:
            dist.destroy_process_group()

    @property
    def changes(self) -> ChangeQueue:
        """Changes that users request of this member during training."""
        return ChangeQueue(self.run.path / CONTROL, self.member.name, self.run.since)

    def device(self, local_rank: int) -> torch.device:
        if self.spec.train.chosen_device() == "cpu":
            return torch.device("cpu")
        device = torch.device("cuda", local_rank % torch.cuda.device_count())
        torch.cuda.set_device(device)
        return device

    def report(self, rank: int) -> Emit:
        """Return an emitter: all events of rank 0, and those of `_FROM_ALL_RANKS` of the others."""

        def report(event: Event) -> None:
            if rank == 0:
                self.log.emit(event)
            elif isinstance(event, _FROM_ALL_RANKS):
                self.log.emit(event.but(rank=rank))

        return report

    def warm_up(self) -> None:
        """Load what the first generation needs, so that it starts at once."""
        data = self.setup.data
        self.spec.student.build(len(data.classes), data.shape[0], refit=True)


def agreed_backend(store: Store, preferred: str, rank: int, world: int) -> str:
    """Return the backend that all ranks prefer, or gloo where they differ.

    Machines may differ, and ranks with different backends would wait for ever.
    """
    store.set(f"backend of {rank}", preferred)
    backends = {store.get(f"backend of {r}").decode() for r in range(world)}
    return preferred if len(backends) == 1 else "gloo"


def is_broken_group(error: Exception) -> bool:
    """Return whether a collective failed because another rank ended."""
    if isinstance(error, dist.DistError | ConnectionError):
        return True
    words = ("gloo", "Gloo", "NCCL", "ProcessGroup", "peer")
    return isinstance(error, RuntimeError) and any(word in str(error) for word in words)


def is_machines_fault(error: Exception) -> bool:
    """Return whether this machine caused an error: a rank elsewhere may succeed.

    A full memory does not count: the same batch fills that of the next rank, too.
    """
    if isinstance(error, torch.OutOfMemoryError):
        return False
    if isinstance(error, OSError) or type(error).__name__ == "AcceleratorError":
        return True
    cuda = ("CUDA error", "cuDNN error", "CUBLAS", "device-side")
    return isinstance(error, RuntimeError) and any(word in str(error) for word in cuda)


def serve(
    rank: RankProcess[OrderType],
    orders: "queue.SimpleQueue[dict[str, Any] | None]",
    send: Callable[..., None] = announce,
    end: Callable[[int], object] = os._exit,
) -> None:
    """Execute orders until the end, and announce how each generation ends."""
    send(ready=True)
    while (order := orders.get()) is not None:
        answer = _execute(rank, from_builtins(rank.takes, order))
        send(**to_builtins(answer))
        if isinstance(answer, MachineFailed):
            # This rank is lost: another process, maybe elsewhere, takes its place.
            end(_LOST)
        if isinstance(answer, RankSaved) and rank.leaving:
            return


def _execute(rank: RankProcess[OrderType], order: OrderType) -> RankAnswer:
    try:
        result = rank.generation(order)
        return RankDone(None if result is None else to_builtins(result))
    except GenerationEnds:
        return RankSaved(rank.leaving)
    except RunStopped as error:
        return RankStopped(str(error))
    except KdlabError as error:
        traceback.print_exc()
        return RankFailed(str(error), error.exit_code)
    except Exception as error:  # models and Gloo may raise any
        traceback.print_exc()
        why = f"{type(error).__name__}: {error}"
        if is_broken_group(error):
            return GroupBroken(why[:300])
        return MachineFailed(why[:300]) if is_machines_fault(error) else RankFailed(why)


def main(kind: type[RankProcess[Any]]) -> None:
    """Run a rank's process: set it up, then serve orders until its end."""
    orders: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
    ranks: list[RankProcess[Any]] = []

    def receive(message: dict[str, Any]) -> None:
        if "end" in message:
            orders.put(None)
            return
        match RankOrder.from_builtins(message):
            case CarryOut(order):
                orders.put(order)
            case StopTraining():
                for rank in ranks:
                    rank.stopping = True
            case SaveGeneration():
                for rank in ranks:
                    rank.saving = True

    config = configured(RankConfig, receive)
    logging.getLogger("distributed").setLevel(logging.ERROR)
    run = RunFolder(Path(config.run))
    accept_components(run)
    rank = kind(run, config.member, HeartbeatFile(Path(config.pulse)).beat)
    ranks.append(rank)

    def leave(*_: Any) -> None:
        rank.leaving = True  # all ranks save before it ends
        if not dist.is_initialized():
            os._exit(0)

    signal.signal(signal.SIGTERM, leave)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the run's process sends orders instead
    rank.warm_up()
    serve(rank, orders)
