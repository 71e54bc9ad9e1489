"""The stages of one device: workers with their data, optimisers and random states."""

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
    """Workers of one device, one for each stage that it has; an idle device has none.

    All ranks must construct theirs at the same time.
    """

    def __init__(self, job: BlockwiseJob, loop: PlanLoop) -> None:
        self.job, self._loop = job, loop
        self.rounds: SearchRounds | None = None  # of a search
        if job.search is not None:
            steps = job.recipe.epochs * job.samples.plan.batches
            pairs, works = job.cutting.pairs, job.cutting.works
            self.rounds = SearchRounds(
                job.search, pairs, works, seed=job.seed, of_steps=steps
            )
        optimizer_of = make_optimizer if self.rounds is None else self.rounds.optimizer
        students = [pair.student for pair in job.cutting.pairs]
        # One for each block of the student, also for those of other devices.
        self.optimizers: list[Stepper] = [optimizer_of(job.recipe, s) for s in students]
        self.train_steps = [
            TrainStep(job.recipe, student, device=job.device, optimizer=optimizer)
            for student, optimizer in zip(students, self.optimizers, strict=True)
        ]
        self.loaders: list[Loader] = []  # one for each worker
        self.sizes: list[int] = []  # samples of each batch left in the epoch
        self._first = 0  # batch of the epoch that steps count from
        self._losses: dict[int, Tensor] = {}  # sums by block since the last report
        self._reported = 0  # step of the last report
        self.groups = stage_groups(job.programme.plans)
        self.workers = [
            self._worker(p, self.groups) for p in job.programme.plans_of(job.rank)
        ]
        keep_own_blocks(
            job.cutting.pairs,
            students={b for w in self.workers for b in w.stage.blocks},
            teachers={b for w in self.workers for b in _taught(w.stage)},
            whole_student=job.rank == 0,
        )

    def begin(self, first: int) -> None:
        """Begin an epoch at its batch `first`."""
        epoch, self._first = self._loop.position.epoch, first
        for loader in self.loaders:
            loader.begin(epoch, first)
        self.sizes = [len(ids) for ids in self.job.samples.batches(epoch)[first:]]
        for worker in self.workers:
            worker.spans.clear()  # after a pause steps count from there
        self._reported, self._losses = self._loop.position.step, {}

    def mean_losses(self) -> dict[int, float]:
        """Return the mean loss of each of this device's blocks since the last call."""
        steps = max(1, self._loop.position.step - self._reported)
        means = {block: float(total) / steps for block, total in self._losses.items()}
        self._losses, self._reported = {}, self._loop.position.step
        return means

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
        counts = stage.first == 0  # the stage of the first block counts samples

        def load(step: int, start: int, stop: int) -> Tensor:
            if counts:
                ids = loader.ids[step][start:stop]
                self._loop.lineage.trained(ids)
            return loader(step, start, stop)

        def on_step(step: int, losses: Sequence[Tensor]) -> None:
            rows = worker.rows(step)
            share = (rows.stop - rows.start) / rows.batch  # of this device
            for block, loss in zip(stage.blocks, losses, strict=True):
                part = loss * share
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
        """Return what seeds dropout and the like by seed, step, block and row.

        Not by device: so a resume is exact, and so are comparisons of plans that do not share
        blocks. None where no block draws random numbers.
        """
        if not any(_draws(pair.student) for pair in self.job.cutting.pairs):
            return None

        def begin(step: int, number: int, row: int) -> None:
            seed_by(self.job.seed, self._done(step), first + number, row)

        return begin

    def _done(self, step: int) -> int:
        """Return this step's number, counted over all epochs."""
        epochs = self._loop.position.epoch * self.job.samples.plan.batches
        return epochs + self._first + step

    def schedule(self, step: int) -> None:
        """Set the learning rate and the search round before a step of the epoch."""
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
    """Move blocks that a device does not compute to host memory; profiling had them all.

    It trains `students`, runs `teachers`, and may evaluate the `whole_student` between epochs.
    """
    for block, pair in enumerate(pairs):
        if block not in students and not whole_student:
            pair.student.to("cpu")
        if block not in teachers:
            pair.teacher.to("cpu")


def _taught(stage: Stage) -> range:
    """Return the teacher blocks that a stage runs; a baseline's runs those before it, too."""
    return range(0 if stage.from_data else stage.first, stage.stop)


def _draws(student: nn.Module) -> bool:
    """Return whether training it draws random numbers: dropout, stochastic depth."""
    return any(
        isinstance(m, nn.modules.dropout._DropoutNd) or type(m).__name__ in _DRAWING
        for m in student.modules()
    )
