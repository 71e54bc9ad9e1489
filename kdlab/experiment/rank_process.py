"""What every rank of a group is: a process that waits for orders and carries them out.

It imports everything, says it is ready, and waits. Told to train, it meets the others,
loads the newest checkpoint and trains until the training, the generation or it itself
ends; then it waits again. So a process may be a rank of many generations, and one that
stands by takes over within the time of a rendezvous.
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

PATIENCE = timedelta(minutes=30)  # for the others; the supervisor sees a hang much sooner
_LOST = 70  # exit code of a rank whose machine failed it
_TOLD_BY_ALL = (TeacherLost, AllTeachersLost, Warned, TeacherJoined, TeacherLeft)


class RankProcess(ABC, Generic[OrderType]):
    """A process that can be a rank of one member's training.

    Args:
        run: its folder.
        member: of the run.
        beat: called with (generation, step) as a sign of life.
        stop: whether the user asked this process to stop.
    """

    takes: type[OrderType]  # what it is told to carry out

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
        """One generation, to its end; the master's result, a dataclass.

        Raises:
            GenerationEnds: a rank comes or goes; all have saved.
            RunStopped, KdlabError, RuntimeError: as the training loop and gloo do.
        """

    def stops(self) -> bool:
        return self.stopping or self._stop()

    def backend(self, device: torch.device, on_this_machine: int) -> str:
        """What this rank can speak: NCCL when every rank here has a GPU of its own."""
        enough = torch.cuda.device_count() >= on_this_machine
        return "nccl" if device.type == "cuda" and enough else "gloo"

    @contextmanager
    def meeting(self, order: GenerationOrder, device: torch.device) -> Iterator[None]:
        """The default process group is up while the block goes on."""
        url, rank, world = order.meet_at, order.rank, order.world
        store, *_ = next(iter(rendezvous(url, rank, world, timeout=PATIENCE)))
        store.set_timeout(PATIENCE)  # torch does it for stores of its own making only
        own = self.backend(device, order.local_world)
        backend, secret = agreed_backend(store, own, rank, world), order.secret.encode()
        process_groups.begin(store, backend, rank, world, secret, PATIENCE)
        try:
            yield
        finally:
            dist.destroy_process_group()

    @property
    def changes(self) -> ChangeQueue:
        """What somebody asks of this member while it trains."""
        return ChangeQueue(self.run.path / CONTROL, self.member.name, self.run.since)

    def device(self, local_rank: int) -> torch.device:
        if self.spec.train.chosen_device() == "cpu":
            return torch.device("cpu")
        device = torch.device("cuda", local_rank % torch.cuda.device_count())
        torch.cuda.set_device(device)
        return device

    def report(self, rank: int) -> Emit:
        """Events of rank 0, and what is news from any."""

        def report(event: Event) -> None:
            if rank == 0:
                self.log.emit(event)
            elif isinstance(event, _TOLD_BY_ALL):
                self.log.emit(event.but(rank=rank))

        return report

    def warm_up(self) -> None:
        """Load what the first generation needs, so that it begins at once."""
        data = self.setup.data
        self.spec.student.build(len(data.classes), data.shape[0], refit=True)


def agreed_backend(store: Store, own: str, rank: int, world: int) -> str:
    """What all ranks speak: their own where it is the same for all, else gloo.

    Machines may differ, and ranks that begin with different ones would wait for ever.
    """
    store.set(f"backend of {rank}", own)
    every = {store.get(f"backend of {r}").decode() for r in range(world)}
    return own if len(every) == 1 else "gloo"


def is_broken_group(error: Exception) -> bool:
    """Whether a collective failed because another rank is gone, rather than by itself."""
    if isinstance(error, dist.DistError | ConnectionError):
        return True
    words = ("gloo", "Gloo", "NCCL", "ProcessGroup", "peer")
    return isinstance(error, RuntimeError) and any(word in str(error) for word in words)


def is_machines_fault(error: Exception) -> bool:
    """Whether it happened for reasons of this machine: another rank may do without.

    A full memory is not among them: the same batch fills the next one's, too.
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
    say: Callable[..., None] = announce,
    end: Callable[[int], object] = os._exit,
) -> None:
    """Carry out orders until the end; every way a generation ends is announced."""
    say(ready=True)
    while (order := orders.get()) is not None:
        answer = _carried_out(rank, from_builtins(rank.takes, order))
        say(**to_builtins(answer))
        if isinstance(answer, MachineFailed):
            # A rank that is lost: another process, maybe elsewhere, takes its place.
            end(_LOST)
        if isinstance(answer, RankSaved) and rank.leaving:
            return


def _carried_out(rank: RankProcess[OrderType], order: OrderType) -> RankAnswer:
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
    except Exception as error:  # whatever the models and gloo raise
        traceback.print_exc()
        why = f"{type(error).__name__}: {error}"
        if is_broken_group(error):
            return GroupBroken(why[:300])
        return MachineFailed(why[:300]) if is_machines_fault(error) else RankFailed(why)


def main(kind: type[RankProcess[Any]]) -> None:
    """The whole life of a rank's process."""
    orders: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
    made: list[RankProcess[Any]] = []

    def hear(message: dict[str, Any]) -> None:
        if "end" in message:
            orders.put(None)
            return
        match RankOrder.from_builtins(message):
            case CarryOut(order):
                orders.put(order)
            case StopTraining():
                for rank in made:
                    rank.stopping = True
            case SaveGeneration():
                for rank in made:
                    rank.saving = True

    config = configured(RankConfig, hear)
    logging.getLogger("distributed").setLevel(logging.ERROR)
    run = RunFolder(Path(config.run))
    accept_components(run)
    rank = kind(run, config.member, HeartbeatFile(Path(config.pulse)).beat)
    made.append(rank)

    def leave(*_: Any) -> None:
        rank.leaving = True  # a polite goodbye: all save first
        if not dist.is_initialized():
            os._exit(0)

    signal.signal(signal.SIGTERM, leave)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the run's process says what to do
    rank.warm_up()
    serve(rank, orders)
