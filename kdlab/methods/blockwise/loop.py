"""Blockwise distillation epoch by epoch: Algorithm 1 of Pipe-BD for one device.

    5: for each epoch                                       -> BlockwiseLoop.train
    6-16: for each device, for each step                    -> Worker.advance
    (section IV-B) whole model validated between epochs     -> _finish_epoch

Within an epoch nobody waits for anybody but for the relay. What all must do at the same
step (stop, save, pause, leave) goes round beside it, as does the loss: each device says its
part of a step and reads everybody's some steps later, when all have spoken for long. So
an epoch can end early, at a step that all learn of in time, with nothing left under way.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from kdlab.control.cadence import logging
from kdlab.control.loop_control import LoopControl
from kdlab.control.request import ControlRequest
from kdlab.control.steering import LR_FACTOR, Steering
from kdlab.data.samples import PlannedSamples
from kdlab.errors import KdlabError, RunStopped
from kdlab.events.event import Emit
from kdlab.events.general import Warned
from kdlab.events.training import (
    CheckpointSaved,
    EpochDone,
    Resumed,
    StepLogged,
)
from kdlab.methods.blockwise import stage as engine
from kdlab.methods.blockwise.consensus import StepConsensus, agreed
from kdlab.methods.blockwise.gathering import Gathering
from kdlab.methods.blockwise.loader import Loader
from kdlab.methods.blockwise.pairs import BlockPair
from kdlab.methods.blockwise.search import ArchitectureSearch, SearchRounds
from kdlab.methods.blockwise.served_prefix import Open, PrefixLoader
from kdlab.methods.blockwise.stage import Worker, stage_groups
from kdlab.models.memory import keep_freed_memory
from kdlab.models.model import ModelSpec, Normalised
from kdlab.papers.pipe_bd.execution_plan import ExecutionPlan
from kdlab.papers.pipe_bd.relay import Span
from kdlab.papers.pipe_bd.stages import Plan, Stage
from kdlab.train import checkpoint
from kdlab.train.aggregation.ranks import GenerationEnds
from kdlab.train.lineage import Lineage, Odometer
from kdlab.train.position import Position
from kdlab.train.recipe import Recipe, Stepper, lr_at, make_optimizer
from kdlab.train.result import StudentResult
from kdlab.train.results import Results

_LOG_EVERY_S = 0.2
_NOTHING = ControlRequest(settings=(0.0,))
_DRAWING = ("DropPath", "DropBlock2d", "StochasticDepth")  # of timm and torchvision
_TRACED = 12  # steps at the end of each epoch
_TICK_GPU = 10  # steps between two reports on a GPU, where asking for a loss waits for it


@dataclass(slots=True, kw_only=True)
class BlockwiseJob:
    """What to train, on what, and where to write; the same for all ranks but for `rank`.

    Attributes:
        student: the whole, made of the pairs' students, with the teacher's statistics.
        shapes: of one row of each block's input.
        outputs: of one row of each block's output.
        fence: of this generation of ranks; see kdlab/train/checkpoint.py.
        leave: whether to save and end this generation.
        pulse: a sign of life, with the step.
        steering: what the user changes while it trains; the master's counts.
        search: of the architecture, when the student is a supernet.
        works: multiplications of each teacher block for one image, for a search.
        opened: opens a source of the first teacher blocks' outputs, where the programme has
            them served.
        on_trace: told by the master what all devices did in an epoch's last steps.
    """

    recipe: Recipe
    model_spec: ModelSpec
    student: Normalised
    pairs: Sequence[BlockPair]
    shapes: Sequence[Sequence[int]]
    outputs: Sequence[Sequence[int]]
    samples: PlannedSamples
    programme: ExecutionPlan
    norm: Literal["sync", "local"]
    seed: int
    folder: Path
    spec_hash: str
    rank: int
    device: torch.device
    emit: Emit
    fence: int = 0
    stop: Callable[[], bool] = lambda: False
    leave: Callable[[], bool] = lambda: False
    pulse: Callable[[int], None] = lambda step: None
    steering: Steering = field(default_factory=lambda: Steering(None, ""))
    search: ArchitectureSearch | None = None
    works: Sequence[float] = ()
    opened: Open | None = None
    on_trace: Callable[[list[Span]], None] = lambda spans: None


class BlockwiseLoop:
    """One rank of the default process group, which is up."""

    def __init__(self, job: BlockwiseJob) -> None:
        keep_freed_memory()
        self.job = job
        if job.recipe.threads is not None:
            torch.set_num_threads(job.recipe.threads)
        self.plans = job.programme.of(job.rank)
        self.rounds: SearchRounds | None = None
        self.optimizers: list[Stepper] = []
        if job.search is None:
            self.optimizers += [make_optimizer(job.recipe, p.student) for p in job.pairs]
        else:
            steps = job.recipe.epochs * job.samples.plan.batches
            self.rounds = SearchRounds(
                job.search, job.pairs, job.works, seed=job.seed, of_steps=steps
            )
            self.optimizers += [
                self.rounds.optimizer(job.recipe, p.student) for p in job.pairs
            ]
        groups = stage_groups(job.programme.plans)
        # Reports go by processor whatever the models are on.
        self.talk: Any = dist.new_group(backend="gloo")
        self.loaders: list[Loader | PrefixLoader] = []
        self.position = Position()
        data = job.samples.data
        self.lineage = Lineage.start(len(data.labels), data.train)
        self.odometer = Odometer(job.folder / "odometer")
        self._losses: dict[int, Tensor] = {}  # sums since the last word
        self._limit = 0
        self._wanted = _NOTHING  # at the limit
        self.control = LoopControl(
            job.steering,
            {LR_FACTOR: 1.0},
            step=lambda: self.position.step,
            emit=job.emit,
            stop=job.stop,
            leave=job.leave,
            pulse=job.pulse,
            is_first=job.rank == 0,
        )
        self._sums = torch.zeros(job.programme.blocks, dtype=torch.float64)
        self.logs = logging(_LOG_EVERY_S, job.recipe.log_every_steps)
        self._reported = 0  # step of the last report
        self._count = 0  # reports in `_sums`
        self.step_s: list[float] = []
        self.workers = [self._worker(plan, groups) for plan in self.plans]
        self.gathering = Gathering(
            pairs=job.pairs,
            optimizers=self.optimizers,
            workers=self.workers,
            programme=job.programme,
            norm=job.norm,
            rank=job.rank,
            talk=self.talk,
        )
        longest = max(len(plan.stages) for plan in job.programme.plans)
        self._tick = _TICK_GPU if job.device.type == "cuda" else 1
        self._lead = max(plan.lead for plan in job.programme.plans)
        self._lag = (self._lead + 1) * longest
        self.results = Results(
            job.student,
            job.model_spec,
            data,
            job.folder,
            job.recipe.evaluate_batch,
            alive=lambda: job.pulse(self.position.step),
        )

    def _worker(self, plan: Plan, groups: Mapping[tuple[int, ...], Any]) -> Worker:
        job = self.job
        stage = plan.stages[plan.stage_of(job.rank)]
        loader = self._loader(stage)
        self.loaders.append(loader)
        counts = stage.first == 0  # whoever trains the first block counts its samples

        def load(step: int, start: int, stop: int) -> Tensor:
            if counts:
                ids = loader.ids[step][start:stop]
                self.lineage.trained(ids)
            return loader(step, start, stop)

        def on_step(step: int, losses: Sequence[Tensor]) -> None:
            rows = self._rows(plan, step)
            for block, loss in zip(stage.blocks, losses, strict=True):
                part = loss * rows
                before = self._losses.get(block)
                self._losses[block] = part if before is None else before + part

        return Worker(
            plan,
            job.rank,
            engine.StageJob(
                pairs=[job.pairs[b] for b in stage.blocks],
                optimizers=[self.optimizers[b] for b in stage.blocks],
                load=load,
                served=loader.served,
                prefix=[p.teacher for p in job.pairs[: stage.first]]
                if stage.from_data
                else (),
                batch_of=lambda step: len(loader.ids[step]),
                schedule=self._schedule,
                on_step=on_step,
                before_block=self._random_states(stage.first),
                clip_norm=job.recipe.clip_grad_norm,
                norm=job.norm,
            ),
            groups,
            job.shapes[stage.first],
        )

    def _loader(self, stage: Stage) -> Loader | PrefixLoader:
        job, served = self.job, self.job.programme.served
        if not served or stage.first:
            return Loader(job.samples, job.student, job.device)
        assert job.opened is not None
        return PrefixLoader(
            job.samples, stage, job.rank, job.student, job.outputs[:served], job.opened
        )

    def _random_states(self, first: int) -> Callable[[int, int, int], None] | None:
        """Dropout and the like depend on seed, step, block and row, not on the device.

        So a resume is exact, and so are comparisons of plans that do not share blocks.
        """
        if not any(_draws(pair.student) for pair in self.job.pairs):
            return None

        def begin(step: int, number: int, row: int) -> None:
            done = self.position.epoch * self.job.samples.plan.batches
            done += self.loaders[0].first + step
            key = (self.job.seed, done, first + number, row)
            torch.manual_seed(
                int.from_bytes(blake2b(repr(key).encode(), digest_size=7).digest())
            )

        return begin

    def _rows(self, plan: Plan, step: int) -> float:
        """This device's share of a step's batch."""
        size = len(self.loaders[0].ids[step])
        stage = plan.of_batch(size).stages[plan.stage_of(self.job.rank)]
        start, stop = stage.interval(self.job.rank)
        return (stop - start) / size

    def _is_own(self, block: int) -> bool:
        return any(block in worker.stage.blocks for worker in self.workers)

    def _schedule(self, step: int) -> None:
        recipe, steps = self.job.recipe, self.job.samples.plan.batches
        epoch = self.position.epoch + (self.loaders[0].first + step) / steps
        lr = lr_at(recipe, epoch, steps)
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = lr * self.control.lr_factor
        if self.rounds is not None:
            done = self.position.epoch * steps + self.loaders[0].first + step
            self.rounds.begin(done, self.optimizers)

    # Start and resume

    def go_to(self, found: checkpoint.Found | None) -> None:
        """Go to a checkpoint that was loaded; None is the start."""
        job, master = self.job, self.job.rank == 0
        if found is None:
            if master:
                self.lineage.rolled_back = self.odometer.roll_back(0)
            return
        tensors, facts, notes = found
        for block, pair in enumerate(job.pairs):
            head = f"block.{block}."
            own = {k[len(head) :]: v for k, v in tensors.items() if k.startswith(head)}
            if master or self._is_own(block):
                checkpoint.unpack(
                    own,
                    facts["blocks"][block],
                    pair.student,
                    self.optimizers[block],
                    rank=-1,
                )
        self.position = Position.from_checkpoint(facts, job.samples.plan.batch)
        self.lineage.restore(tensors["lineage.counts"].numpy(), facts["lineage"])
        if not master:  # the counts of all ranks go on in the master's
            self.lineage.counts[:] = 0
            return
        undone = max(0, self.odometer.value - self.lineage.seen)
        self.lineage.rolled_back = self.odometer.roll_back(self.lineage.seen)
        for note in notes:
            job.emit(Warned(message=note))
        position = self.position
        job.emit(Resumed(epoch=position.epoch, step=position.step, rolled_back=undone))

    # Training

    def train(self) -> None:
        """To the end of the last epoch.

        Raises:
            RunStopped: the user asked; the state is saved.
            GenerationEnds: a rank comes or goes; the state is saved.
            KdlabError: a loss is no number any more.
        """
        self.control.apply(agreed(self.talk, self.control.first_settings()))
        try:
            while self.position.epoch < self.job.recipe.epochs:
                if self._train_epoch():
                    self._finish_epoch()
        finally:
            for loader in self.loaders:
                loader.close()

    def _train_epoch(self) -> bool:
        """The rest of it, or as far as all want; whether that was to its end."""
        position = self.position
        first = len(position.done)
        for loader in self.loaders:
            loader.begin(position.epoch, first)
        for worker in self.workers:
            worker.spans.clear()  # after a pause steps count from there
        self._limit = steps = len(self.loaders[0].ids)
        self._wanted = _NOTHING
        begin = time.perf_counter()
        self.logs.done(position.step)
        self._count = 0
        self._reported, self._losses = position.step, {}
        self._sums.zero_()
        done = self._run(steps)
        position.train_seconds += time.perf_counter() - begin
        position.done |= set(range(first, first + done))
        if done > 2:
            self.step_s.append((time.perf_counter() - begin) / done)
        self._act(self._wanted)
        if self._wanted.pause:
            self._pause()
        return done == steps

    def _run(self, steps: int) -> int:
        """The steps of an epoch, or as many as all want; how many."""
        job, position = self.job, self.position
        consensus = StepConsensus(self.talk, job.programme.blocks, self._lag)
        sizes = [len(ids) for ids in self.loaders[0].ids]
        seen = self.lineage.seen
        running = [worker.advance(lambda: self._limit) for worker in self.workers]
        step = 0
        while step < self._limit:
            for worker in self.workers:
                # Waiting for a GPU after every part costs time: in the first epoch alone.
                worker.exact = position.epoch == 0 and step >= steps - _TRACED
            for one in running:
                next(one)
            position.step += 1
            seen += sizes[step]
            self.lineage.seen = seen
            if job.rank == 0:
                self.odometer.value = seen
            job.pulse(position.step)
            if step % self._tick == 0:
                consensus.report(step, self._mean_losses(), self.control.request())
            for agreed_on in consensus.agreed_at(step):
                self._follow(*agreed_on, steps=steps)
            step += 1
        for one in running:
            next(one, None)  # its last sends leave
        if self._losses:  # of steps after the last report
            consensus.report(step - 1, self._mean_losses(), _NOTHING)
        for agreed_on in consensus.agreed_at(step + self._lag):
            self._follow(*agreed_on, steps=step)
        return step

    def _act(self, wanted: ControlRequest) -> None:
        """With nothing under way, all at the same step."""
        if wanted.save or wanted.stop or wanted.leave:
            self._save()
        if wanted.stop:
            raise RunStopped(f"stopped by the user after step {self.position.step}")
        if wanted.leave:
            raise GenerationEnds

    def _pause(self) -> None:
        """It is no training time: the clock of the epoch has stopped."""

        def act(now: ControlRequest) -> None:
            self.control.apply(now)
            self._act(now)

        self.control.pause(
            *(loader.source for loader in self.loaders),
            agree=lambda request: agreed(self.talk, request),
            act=act,
        )

    def _mean_losses(self) -> dict[int, float]:
        """Mean loss of each of this device's blocks, over the steps since the last call."""
        steps = max(1, self.position.step - self._reported)
        found = {block: float(total) / steps for block, total in self._losses.items()}
        self._losses, self._reported = {}, self.position.step
        return found

    def _follow(
        self, step: int, losses: list[float], request: ControlRequest, *, steps: int
    ) -> None:
        """What all reported of a step some steps ago, which all devices learn at the same step."""
        if not all(map(math.isfinite, losses)):
            bad = [b for b, loss in enumerate(losses) if not math.isfinite(loss)]
            raise KdlabError(
                f"The loss of block {bad[0]} is {losses[bad[0]]} at step {step} of epoch "
                f"{self.position.epoch}. Training cannot go on from here. The usual cause is a "
                f"learning rate that is too high: lower train.lr ({self.job.recipe.lr:g})."
            )
        self._sums += torch.tensor(losses, dtype=torch.float64)
        self._count += 1
        self.control.apply(request)
        if request.ends_the_step and not self._wanted.ends_the_step:
            # All are at step + lag now; none has posted a receive beyond the next.
            self._limit = min(steps, step + self._lag + self._lead + 1)
        self._wanted |= request
        if self.job.rank == 0 and self.logs.due(self.position.step):
            self._log()

    def _log(self) -> None:
        job, position = self.job, self.position
        by_block = (self._sums / max(1, self._count)).tolist()
        job.emit(
            StepLogged(
                epoch=position.epoch,
                step=position.step,
                of_steps=job.recipe.epochs * job.samples.plan.batches,
                loss=sum(by_block) / len(by_block),
                block_losses=by_block,
                lr=self.optimizers[self.workers[0].stage.first].param_groups[0]["lr"],
                samples_per_second=self.logs.rate(position.step) * job.samples.plan.batch,
                samples_seen=self.lineage.seen,
            )
        )
        self.logs.done(position.step)
        self._count = 0
        self._sums.zero_()

    # Between epochs

    def _finish_epoch(self) -> None:
        job, position = self.job, self.position
        if job.rank == 0 and self._count:
            self._log()
        counts = torch.from_numpy(self.lineage.counts)
        dist.all_reduce(counts, group=self.talk)  # in place
        self.lineage.finish_epoch(counts.numpy().copy())
        self.gathering.collect()
        facts: dict[str, Any] = {}
        last = position.epoch + 1 == job.recipe.epochs
        if job.rank == 0 and (
            (position.epoch + 1) % job.recipe.evaluate_every == 0 or last
        ):
            facts = self.results.validate(position, is_last=last)
        self._share_trace()
        position.epoch += 1
        position.done.clear()
        if job.rank == 0:
            job.emit(
                EpochDone(
                    epoch=position.epoch,
                    of_epochs=job.recipe.epochs,
                    step=position.step,
                    samples_per_second=self.lineage.seen
                    / max(1e-9, position.train_seconds),
                    samples_lost=self.lineage.lost,
                    samples_repeated=self.lineage.repeated,
                    **facts,
                )
            )
        self._save(collected=True)

    def _share_trace(self) -> None:
        """The epoch's last steps of all devices, to the master."""
        own = [span for worker in self.workers for span in worker.spans]
        for worker in self.workers:
            worker.spans.clear()
        newest = max((span.step for span in own), default=0)
        own = [span for span in own if span.step > newest - _TRACED]
        everyone: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(everyone, own, group=self.talk)
        spans = [span for spans in everyone for span in spans]
        if self.job.rank == 0 and spans:
            self.job.on_trace(spans)

    def _save(self, *, collected: bool = False) -> None:
        """All take part; the master writes."""
        job = self.job
        counts = torch.from_numpy(self.lineage.counts.copy())
        if not collected:
            self.gathering.collect()
            dist.all_reduce(counts, group=self.talk)
        if job.rank == 0:
            tensors: dict[str, Tensor] = {"lineage.counts": counts}
            facts: dict[str, Any] = {"blocks": []}
            for block in range(len(job.pairs)):
                own, more = self.gathering.packed(block)
                tensors |= {f"block.{block}.{k}": v for k, v in own.items()}
                facts["blocks"].append(more)
            facts |= {
                "position": self.position.to_json(),
                "plan": job.samples.plan.facts(),
                "samples": len(job.samples.plan.ids),
                "lineage": self.lineage.facts(),
                "programme": job.programme.facts(),
                "seed": job.seed,
                "spec_hash": job.spec_hash,
            }
            step = self.position.step
            folder = job.folder / "checkpoints"
            path = checkpoint.save(folder, step, tensors, facts, fence=job.fence)
            job.emit(CheckpointSaved(step=step, path=str(path)))
        dist.barrier(group=self.talk)  # nobody goes on from what is not there

    def finish(self) -> StudentResult:
        """Test and export; the master's work."""
        figures = {"step_s": float(np.median(self.step_s)) if self.step_s else 0.0}
        result = self.results.finish(self.position, self.lineage, figures)
        self.odometer.close()
        return result


def _draws(student: nn.Module) -> bool:
    """Whether it draws chances while it is trained: dropout, stochastic depth."""
    return any(
        isinstance(m, nn.modules.dropout._DropoutNd) or type(m).__name__ in _DRAWING
        for m in student.modules()
    )
