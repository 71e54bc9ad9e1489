"""One rank of a student, as a process that a group starts."""

from collections.abc import Callable
from contextlib import closing

import torch

from kdlab.data.samples import RankPart
from kdlab.events.ranks import BatchShared
from kdlab.experiment.folder import RunFolder
from kdlab.experiment.rank_process import RankProcess, main
from kdlab.papers.shares import shared_rows
from kdlab.soft_labels.source import SoftLabelSource, SourceContext
from kdlab.supervision.rank_messages import GenerationOrder
from kdlab.train import checkpoint
from kdlab.train.aggregation.all_reduce import AllReduce
from kdlab.train.aggregation.ranks import ProcessGroupRanks, Ranks
from kdlab.train.position import Position
from kdlab.train.result import MemberResult
from kdlab.train.student import StudentLoop
from kdlab.train.student_job import StudentFacts

_WARM_UP_S = 0.1


class Rank(RankProcess[GenerationOrder]):
    """A rank of a student that trains by all-reduce."""

    takes = GenerationOrder

    def __init__(
        self,
        run: RunFolder,
        member: str,
        beat: Callable[[int, int], None],
        stop: Callable[[], bool] = lambda: False,
    ) -> None:
        super().__init__(run, member, beat, stop)
        assert isinstance(self.spec.aggregation, AllReduce)
        self.aggregation = self.spec.aggregation
        self.rate: float | None = None  # t_s, measured once per process

    def warm_up(self) -> None:
        """Also run first steps, which import and prepare for seconds."""
        super().warm_up()
        if self.spec.train.chosen_device() == "cpu":  # of GPUs the order says which
            probe = self.setup.loop(self.member, self.folder, self.report(1))
            probe.measure_rate(_WARM_UP_S)

    def generation(self, order: GenerationOrder) -> MemberResult | None:
        self.saving = False
        number, world = order.generation, order.world
        self.beat(number, 0)
        device = self.device(order.local_rank)
        if world == 1:
            return self.train(order, Ranks(), device)
        with self.process_group(order, device):
            sync_norms = self.aggregation.batch_norm == "sync"
            ranks = ProcessGroupRanks(device, self.lr_scale(world), sync_norms=sync_norms)
            return self.train(order, ranks, device)

    def backend(self, device: torch.device, on_this_machine: int) -> str:
        if self.aggregation.backend != "auto":
            return self.aggregation.backend
        return super().backend(device, on_this_machine)

    def lr_scale(self, world: int) -> float:
        """Return the factor of the learning rate for a group of this size."""
        scaled = self.aggregation.on_size_change == "scale_lr"
        return world / self.aggregation.ranks if scaled else 1.0

    def train(
        self, order: GenerationOrder, ranks: Ranks, device: torch.device
    ) -> MemberResult | None:
        """Train from the newest checkpoint to the end; return the result on rank 0."""
        spec, number = self.spec, order.generation
        members = order.names or tuple(f"rank{r}" for r in range(ranks.world))
        folder = self.folder / "checkpoints"
        loaded = checkpoint.load_newest(folder, self.hash, StudentFacts)
        batch = spec.train.batch
        if self.aggregation.on_size_change == "scale_lr":
            batch = max(2, batch * ranks.world // self.aggregation.ranks)
        position = Position()
        if loaded is not None:
            position = loaded.facts.restored(batch)
        samples = self.setup.samples(
            self.member,
            RankPart(ranks.rank, self._shares(ranks, device, loaded, members)),
            batch=batch,
            first_epoch=position.epoch,
            first_sample=position.first_sample,
        )
        report = self.report(ranks.rank)
        if ranks.world > 1:
            rows = shared_rows(batch, samples.part.shares)
            report(BatchShared(rows=list(rows), shares=self.aggregation.shares))
        loop = self.setup.loop(
            self.member,
            self.folder,
            report,
            samples=samples,
            ranks=ranks,
            members=members,
            fence=order.fence,
            leave=lambda: self.saving or self.leaving,
            pulse=lambda step: self.beat(number, step),
            changes=self.changes,
        )
        if ranks.rank:  # dropout and the like differ by rank
            torch.manual_seed(self.member.seed * 1009 + ranks.rank)
        loop.restore(loaded)
        self.beat(number, loop.position.step)
        if self.rate is None:
            self.rate = loop.measure_rate()
        with closing(self._opened(order, loop)) as source:
            loop.train(source)
            return loop.finish() if loop.is_master else None

    def _opened(self, order: GenerationOrder, loop: StudentLoop) -> SoftLabelSource:
        """Open the soft labels of this rank's rows, from the loop's position on."""
        number, rank = order.generation, loop.job.ranks.rank
        return self.member.source.build(
            SourceContext(
                samples=loop.job.samples,
                student=f"{self.run.run_id}/{self.member.name}/rank{rank}.{number}",
                folder=self.folder / f"rank{rank}" if rank else self.folder,
                load_teacher=self.setup.load_teacher,
                pool=order.pool,
                report=loop.job.emit,
                stop=lambda: self._waits(number, loop.position.step),
                student_rate=lambda: self.rate or 1.0,
                start=loop.start(),
                in_group=True,
                outputs=loop.job.outputs,
                on_gpu=loop.device.type == "cuda",
            )
        )

    def _shares(
        self,
        ranks: Ranks,
        device: torch.device,
        loaded: checkpoint.LoadedCheckpoint[StudentFacts] | None,
        members: tuple[str, ...],
    ) -> tuple[float, ...]:
        """Return each rank's share of a batch: the checkpoint's while the same ranks train.

        Compared by name, since another process at a place of the group may be much slower.
        """
        if self.aggregation.shares == "equal" or ranks.world == 1:
            return (1.0,) * ranks.world
        saved = loaded.facts.shares if loaded is not None else {}
        if set(saved) == set(members):
            return tuple(saved[name] for name in members)
        if self.rate is None:
            probe = self.setup.loop(self.member, self.folder, self.report(1))
            self.rate = probe.measure_rate()
        rates = ranks.gather(torch.tensor([self.rate], device=device))
        return tuple(float(rate) for rate in rates)

    def _waits(self, number: int, step: int) -> bool:
        """Send a heartbeat for a source that waits for labels; return whether to stop."""
        self.beat(number, step)
        return self.stops()


if __name__ == "__main__":
    main(Rank)
