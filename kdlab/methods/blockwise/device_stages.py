"""The stages of one device: their workers with data, optimisers and chances."""

from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet

from torch import Tensor, nn

from kdlab.methods.blockwise.job import BlockwiseJob
from kdlab.methods.blockwise.loader import Loader
from kdlab.methods.blockwise.pairs import BlockPair
from kdlab.methods.blockwise.search import SearchRounds
from kdlab.methods.blockwise.stage import DpGroups, StageJob, Worker, stage_groups
from kdlab.papers.pipe_bd.stages import Plan, Stage
from kdlab.train.optimizers import make_optimizer
from kdlab.train.plan_loop import PlanLoop
from kdlab.train.recipe import Stepper
from kdlab.train.step import TrainStep, seed_by

_DRAWING = ("DropPath", "DropBlock2d", "StochasticDepth")  # of timm and torchvision


class DeviceStages:
    """Every rank must make its own at the same time; one that is left idle has no workers."""

    def __init__(self, job: BlockwiseJob, loop: PlanLoop) -> None:
        self.job, self._loop = job, loop
        self.rounds: SearchRounds | None = None  # of a search
        if job.search is not None:
            steps = job.recipe.epochs * job.samples.plan.batches
            self.rounds = SearchRounds(
                job.search,
                job.cutting.pairs,
                job.cutting.works,
                seed=job.seed,
                of_steps=steps,
            )
        made = make_optimizer if self.rounds is None else self.rounds.optimizer
        # One for each block of the student, whoever trains it.
        self.optimizers: list[Stepper] = [
            made(job.recipe, p.student) for p in job.cutting.pairs
        ]
        self.train_steps = [
            TrainStep(job.recipe, pair.student, device=job.device, optimizer=own)
            for pair, own in zip(job.cutting.pairs, self.optimizers, strict=True)
        ]
        self.loaders: list[Loader] = []  # one for each worker
        self.sizes: list[int] = []  # samples of each batch that is left of the epoch
        self._first = 0  # batch of the epoch that steps count from
        self._losses: dict[int, Tensor] = {}  # sums by block since the last word
        self._reported = 0  # step of the last word
        self.groups = stage_groups(job.programme.plans)
        self.workers = [self._worker(p, self.groups) for p in job.programme.of(job.rank)]
        keep_own_blocks(
            job.cutting.pairs,
            students={b for w in self.workers for b in w.stage.blocks},
            teachers={b for w in self.workers for b in _asked(w.stage)},
            whole_student=job.rank == 0,
        )

    def begin(self, first: int) -> None:
        """An epoch, from its batch `first` on."""
        epoch, self._first = self._loop.position.epoch, first
        for loader in self.loaders:
            loader.begin(epoch, first)
        self.sizes = [len(ids) for ids in self.job.samples.batches(epoch)[first:]]
        for worker in self.workers:
            worker.spans.clear()  # after a pause steps count from there
        self._reported, self._losses = self._loop.position.step, {}

    def mean_losses(self) -> dict[int, float]:
        """Mean loss of each of this device's blocks, over the steps since the last call."""
        steps = max(1, self._loop.position.step - self._reported)
        found = {block: float(total) / steps for block, total in self._losses.items()}
        self._losses, self._reported = {}, self._loop.position.step
        return found

    def trains(self, block: int) -> bool:
        return any(block in worker.stage.blocks for worker in self.workers)

    def close(self) -> None:
        for loader in self.loaders:
            loader.close()

    def _worker(self, plan: Plan, groups: DpGroups) -> Worker:
        job = self.job
        stage = plan.stages[plan.stage_of(job.rank)]
        loader = Loader(job.samples, job.cutting.student, job.device)
        self.loaders.append(loader)
        counts = stage.first == 0  # whoever trains the first block counts its samples

        def load(step: int, start: int, stop: int) -> Tensor:
            if counts:
                ids = loader.ids[step][start:stop]
                self._loop.lineage.trained(ids)
            return loader(step, start, stop)

        def on_step(step: int, losses: Sequence[Tensor]) -> None:
            own = worker.rows(step)
            rows = (own.stop - own.start) / own.batch  # this device's share
            for block, loss in zip(stage.blocks, losses, strict=True):
                part = loss * rows
                before = self._losses.get(block)
                self._losses[block] = part if before is None else before + part

        worker = Worker(
            plan,
            job.rank,
            StageJob(
                pairs=[job.cutting.pairs[b] for b in stage.blocks],
                train_steps=[self.train_steps[b] for b in stage.blocks],
                load=load,
                prefix=[p.teacher for p in job.cutting.pairs[: stage.first]]
                if stage.from_data
                else (),
                batch_of=lambda step: len(loader.ids[step]),
                schedule=self.schedule,
                on_step=on_step,
                before_block=self._random_states(stage.first),
                norm=job.norm,
            ),
            groups,
            job.cutting.shapes[stage.first],
        )
        return worker

    def _random_states(self, first: int) -> Callable[[int, int, int], None] | None:
        """Dropout and the like depend on seed, step, block and row, not on the device.

        So a resume is exact, and so are comparisons of plans that do not share blocks.
        """
        if not any(_draws(pair.student) for pair in self.job.cutting.pairs):
            return None

        def begin(step: int, number: int, row: int) -> None:
            seed_by(self.job.seed, self._done(step), first + number, row)

        return begin

    def _done(self, step: int) -> int:
        """This step's number, counted over all epochs."""
        epochs = self._loop.position.epoch * self.job.samples.plan.batches
        return epochs + self._first + step

    def schedule(self, step: int) -> None:
        """Before a step of the epoch: the rate of learning, and whose round it is."""
        steps = self.job.samples.plan.batches
        epoch = self._loop.position.epoch + (self._first + step) / steps
        for train_step in self.train_steps:
            train_step.at(epoch, steps, self._loop.control.lr_factor)
        if self.rounds is not None:
            self.rounds.begin(self._done(step), self.optimizers)


def keep_own_blocks(
    pairs: Sequence[BlockPair],
    *,
    students: AbstractSet[int],
    teachers: AbstractSet[int],
    whole_student: bool,
) -> None:
    """Move blocks that a device does not compute to the processor's memory.

    All were on the device to be measured.

    Args:
        pairs: all blocks of both networks.
        students: blocks whose students the device trains.
        teachers: blocks whose teachers it asks.
        whole_student: whether it looks at the whole student between epochs.
    """
    for block, pair in enumerate(pairs):
        if block not in students and not whole_student:
            pair.student.to("cpu")
        if block not in teachers:
            pair.teacher.to("cpu")


def _asked(stage: Stage) -> range:
    """Blocks whose teachers a device of this stage asks: a baseline's those before, too."""
    return range(0 if stage.from_data else stage.first, stage.stop)


def _draws(student: nn.Module) -> bool:
    """Whether it draws chances while it is trained: dropout, stochastic depth."""
    return any(
        isinstance(m, nn.modules.dropout._DropoutNd) or type(m).__name__ in _DRAWING
        for m in student.modules()
    )
