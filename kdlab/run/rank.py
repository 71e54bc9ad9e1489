"""One rank of a student, as a process: `python -m kdlab.run.rank`, started by a group.

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
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import yaml

from kdlab.cluster.children import announce, configured
from kdlab.cluster.pulse import Pulse
from kdlab.config.check import construct
from kdlab.config.load import from_dict, spec_hash
from kdlab.data.samples import Part
from kdlab.errors import KdlabError, RunStopped
from kdlab.models.model import parameters
from kdlab.run.folder import RunFolder
from kdlab.run.ingredients import Ingredients
from kdlab.run.process import accept_components
from kdlab.run.spec import ExperimentSpec, Member
from kdlab.soft_labels.source import SourceContext
from kdlab.train import checkpoint
from kdlab.train.aggregation.all_reduce import AllReduce
from kdlab.train.aggregation.ranks import GenerationEnds, Ranks, Solo, Together
from kdlab.train.events import EventLog, MemberLog
from kdlab.train.position import Position

_PATIENCE = timedelta(minutes=30)  # for the others; the supervisor sees a hang much sooner
_TOLD_BY_ALL = ("teacher_lost", "no_teacher", "warning", "teacher_joined", "teacher_left")


@dataclass(slots=True)
class KnownPool:
    """A pool that somebody else keeps. Satisfies `soft_labels.source.TeacherPool`."""

    address: str
    teacher: str
    tls: dict[str, str] | None


class Rank:
    """A process that can be a rank of one member's training.

    Args:
        run: its folder.
        member: of the run.
        beat: called with (generation, step) as a sign of life.
        stop: whether the user asked this process to stop.
    """

    def __init__(
        self,
        run: RunFolder,
        member: str,
        beat: Callable[[int, int], None],
        stop: Callable[[], bool] = lambda: False,
    ) -> None:
        self.run, self.beat, self._stop = run, beat, stop
        self.stopping = self.saving = self.leaving = False
        tree = from_dict(yaml.safe_load((run.path / "spec.yaml").read_text()), run.run_id)
        spec = construct(ExperimentSpec, tree)
        assert isinstance(spec.aggregation, AllReduce)
        self.spec, self.aggregation = spec, spec.aggregation
        self.member: Member = next(m for m in spec.members() if m.name == member)
        self.folder = run.member(member)
        self.log = MemberLog(EventLog(run.events), member)
        self.hash = spec_hash(spec.to_dict())
        self.ingredients = Ingredients(
            spec,
            self.hash,
            emit=self.log.emit,
            emit_teacher=self.log.emit,
            stop=self._stops,
        )
        self.rate: float | None = None  # t_s, measured once per process

    def _stops(self) -> bool:
        return self.stopping or self._stop()

    def generation(self, order: dict[str, Any]) -> dict[str, Any] | None:
        """One generation, to its end; the master's result.

        Raises:
            GenerationEnds: a rank comes or goes; all have saved.
            RunStopped, KdlabError, RuntimeError: as the training loop and gloo do.
        """
        self.saving = False
        number, rank, world = order["generation"], order["rank"], order["world"]
        self.beat(number, 0)
        device = self.device(rank)
        if world == 1:
            return self.train(order, Solo(), device)
        dist.init_process_group(
            self.backend(device, world),
            init_method=order["meet_at"],
            rank=rank,
            world_size=world,
            timeout=_PATIENCE,
        )
        try:
            return self.train(order, Together(device, self.lr_scale(world)), device)
        finally:
            dist.destroy_process_group()

    def backend(self, device: torch.device, on_this_machine: int) -> str:
        """What the group speaks: NCCL when every rank here has a GPU of its own."""
        if self.aggregation.backend != "auto":
            return self.aggregation.backend
        enough = torch.cuda.device_count() >= on_this_machine
        return "nccl" if device.type == "cuda" and enough else "gloo"

    def lr_scale(self, world: int) -> float:
        """What a group of this size multiplies the learning rate by."""
        scaled = self.aggregation.on_size_change == "scale_lr"
        return world / self.aggregation.ranks if scaled else 1.0

    def device(self, local_rank: int) -> torch.device:
        if self.spec.train.chosen_device() == "cpu":
            return torch.device("cpu")
        device = torch.device("cuda", local_rank % torch.cuda.device_count())
        torch.cuda.set_device(device)
        return device

    def train(
        self, order: dict[str, Any], ranks: Ranks, device: torch.device
    ) -> dict[str, Any] | None:
        """From the newest checkpoint to the end, in a group that is up; rank 0's result."""
        spec, number = self.spec, order["generation"]
        found = checkpoint.load_newest(self.folder / "checkpoints", self.hash)
        batch = spec.train.batch
        if self.aggregation.on_size_change == "scale_lr":
            batch = max(2, batch * ranks.world // self.aggregation.ranks)
        position = Position()
        if found is not None:
            position = Position.from_checkpoint(found[1], batch)
        samples = self.ingredients.samples(
            self.member,
            Part(ranks.rank, self._shares(ranks, device, found)),
            batch=batch,
            first_epoch=position.epoch,
            first_sample=position.first_sample,
        )
        report = self._report(ranks.rank)
        loop = self.ingredients.loop(
            self.member,
            self.folder,
            report,
            samples=samples,
            ranks=ranks,
            leave=lambda: self.saving or self.leaving,
            pulse=lambda step: self.beat(number, step),
        )
        if ranks.rank:  # dropout and the like: chances of its own
            torch.manual_seed(self.member.seed * 1009 + ranks.rank)
        loop.go_to(found)
        self.beat(number, loop.position.step)
        if self.rate is None:
            self.rate = loop.measure_rate()
        source = self.member.source.build(
            SourceContext(
                samples=samples,
                student=f"{self.run.run_id}/{self.member.name}/rank{ranks.rank}.{number}",
                folder=self.folder / f"rank{ranks.rank}" if ranks.rank else self.folder,
                load_teacher=self.ingredients.load_teacher,
                pool=None if order["pool"] is None else KnownPool(**order["pool"]),
                report=report,
                stop=lambda: self._waits(number, loop.position.step),
                student_rate=lambda: self.rate or 1.0,
                start=loop.start(),
                in_group=True,
            )
        )
        with closing(source):
            loop.train(source)
            if not loop.is_master:
                return None
            return asdict(loop.finish()) | {"parameters": parameters(loop.model)}

    def _shares(
        self, ranks: Ranks, device: torch.device, found: checkpoint.Found | None
    ) -> tuple[float, ...]:
        """Of each rank in a batch; those of the checkpoint while the size is the same."""
        if self.aggregation.shares == "equal" or ranks.world == 1:
            return (1.0,) * ranks.world
        saved = found[1]["shares"] if found is not None else []
        if len(saved) == ranks.world:
            return tuple(saved)
        if self.rate is None:
            probe = self.ingredients.loop(self.member, self.folder, self._report(1))
            self.rate = probe.measure_rate()
        rates = ranks.gather(torch.tensor([self.rate], device=device))
        return tuple(float(rate) for rate in rates)

    def _waits(self, number: int, step: int) -> bool:
        """Asked by a source that waits: it is alive, it only has nothing to train on."""
        self.beat(number, step)
        return self._stops()

    def _report(self, rank: int) -> Callable[..., None]:
        def report(event: str, /, **data: Any) -> None:
            if rank == 0:
                self.log.emit(event, **data)
            elif event in _TOLD_BY_ALL:
                self.log.emit(event, rank=rank, **data)

        return report


def is_broken_group(error: Exception) -> bool:
    """Whether a collective failed because another rank is gone, rather than by itself."""
    if isinstance(error, dist.DistError | ConnectionError):
        return True
    return isinstance(error, RuntimeError) and any(
        word in str(error) for word in ("gloo", "Gloo", "NCCL", "ProcessGroup", "peer")
    )


def serve(rank: Rank, orders: "queue.SimpleQueue[dict[str, Any]]") -> None:
    """Carry out orders until the end; every way a generation ends is announced."""
    announce(ready=True)
    while True:
        order = orders.get()
        if "end" in order:
            return
        if "train" not in order:
            continue
        try:
            announce(done=rank.generation(order["train"]))
        except GenerationEnds:
            announce(saved=True, leaving=rank.leaving)
            if rank.leaving:
                return
        except RunStopped as error:
            announce(stopped=str(error))
        except KdlabError as error:
            traceback.print_exc()
            announce(error=str(error), exit_code=error.exit_code)
        except Exception as error:  # whatever the models and gloo raise
            traceback.print_exc()
            why = f"{type(error).__name__}: {error}"
            if is_broken_group(error):
                announce(broken=why[:300])
            else:
                announce(error=why, exit_code=1)


def main() -> None:
    orders: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    made: list[Rank] = []

    def hear(order: dict[str, Any]) -> None:
        for rank in made:
            rank.stopping |= bool(order.get("stop"))
            rank.saving |= bool(order.get("save"))
        orders.put(order)

    config = configured(hear)
    logging.getLogger("distributed").setLevel(logging.ERROR)
    run = RunFolder(Path(config["run"]))
    accept_components(run)
    rank = Rank(run, config["member"], Pulse(Path(config["pulse"])).beat)
    made.append(rank)

    def leave(*_: Any) -> None:
        rank.leaving = True  # a polite goodbye: all save first
        if not dist.is_initialized():
            os._exit(0)

    signal.signal(signal.SIGTERM, leave)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the run's process says what to do
    _warm_up(rank)
    serve(rank, orders)


def _warm_up(rank: Rank) -> None:
    """Load what the first generation needs, so that it begins at once."""
    data = rank.ingredients.data
    rank.spec.student.build(len(data.classes), data.shape[0])


if __name__ == "__main__":
    main()
