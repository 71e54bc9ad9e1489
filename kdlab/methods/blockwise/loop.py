"""Blockwise distillation epoch by epoch: Algorithm 1 of Pipe-BD for one device.

    5: for each epoch                                       -> BlockwiseLoop.train
    6-16: for each device, for each step                    -> Worker.advance
    (section IV-B) whole model validated between epochs     -> _finish_epoch

Within an epoch devices wait for the relay alone. Losses and requests that all must act on at the
same step (stop, save, pause, leave) go beside it: each device reports its part of a step and reads
the sum some steps later. So an epoch can end early, at a step that all learn of in time, with
nothing left under way.
"""

import math
import time
from dataclasses import replace

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from kdlab.changes.request import ChangeRequest
from kdlab.codec import to_builtins
from kdlab.errors import Diverged, RunStopped
from kdlab.methods.blockwise.consensus import StepConsensus
from kdlab.methods.blockwise.device_stages import DeviceStages
from kdlab.methods.blockwise.gathering import Gathering
from kdlab.methods.blockwise.job import BlockwiseFacts, BlockwiseJob
from kdlab.papers.pipe_bd.relay import Span
from kdlab.supervision.process_groups import from_all, group_of_all
from kdlab.train import checkpoint
from kdlab.train.aggregation.ranks import GenerationEnds, agreed_by_all
from kdlab.train.cadence import Cadence
from kdlab.train.evaluate import Accuracy
from kdlab.train.plan_loop import PlanLoop
from kdlab.train.recalibration import recalibrate
from kdlab.train.result import MemberResult

_NOTHING = ChangeRequest(values=(0.0,))
_TRACED = 12  # steps at the end of each epoch
_TICK_GPU = 10  # steps between reports on a GPU, where reading a loss waits for it


class BlockwiseLoop(PlanLoop):
    """Blockwise training in one rank of the default process group, which must exist."""

    job: BlockwiseJob

    def __init__(self, job: BlockwiseJob) -> None:
        student, spec = job.cutting.student, job.cutting.spec
        super().__init__(job, student, spec, is_master=job.rank == 0)
        self.stages = DeviceStages(job, self)
        # Reports go through host memory, also where the models are on GPUs.
        self.talk = group_of_all("gloo")
        self._limit = 0  # step at which all end the epoch
        self._wanted = _NOTHING  # request to act on at the limit
        # Sums of losses by block over all devices since the last log line, and reports in them.
        self._sums, self._count = torch.zeros(job.programme.blocks, dtype=torch.float64), 0
        self.step_s: list[float] = []  # seconds of a step, by epoch
        self.gathering = Gathering(job, self.stages, self.talk)
        longest = max(len(plan.stages) for plan in job.programme.plans)
        self.saves = Cadence(None, job.recipe.checkpoint_every_steps)
        self._tick = _TICK_GPU if job.device.type == "cuda" else 1  # steps between reports
        self._lead = max(plan.lead for plan in job.programme.plans)
        # Steps until a report is read, more than devices are ever apart.
        self._lag = (self._lead + 1) * longest

    # Start and resume

    def restore(self, loaded: checkpoint.LoadedCheckpoint[BlockwiseFacts] | None) -> None:
        """Go to a loaded checkpoint; None is the start."""
        tensors, blocks = (loaded.tensors, loaded.facts.blocks) if loaded else ({}, [])
        for block, facts in enumerate(blocks):
            if self.job.rank == 0 or self.stages.trains(block):
                head, student = f"block.{block}.", self.job.cutting.pairs[block].student
                state = {
                    k[len(head) :]: v for k, v in tensors.items() if k.startswith(head)
                }
                optimizer = self.stages.optimizers[block]
                checkpoint.unpack(state, facts, student, optimizer, rank=-1)
        self._count_from(loaded)
        self.saves.done(self.position.step)

    # Training

    def train(self) -> None:
        """Train to the end of the last epoch.

        Raises:
            RunStopped: the user stopped the run; its state is saved.
            GenerationEnds: a rank joins or leaves; the state is saved.
            Diverged: a loss is not finite.
        """
        self.control.apply(agreed_by_all(self.control.wanted_values(now=True), self.talk))
        try:
            while self.position.epoch < self.job.recipe.epochs:
                if self._train_epoch():
                    self._finish_epoch()
        finally:
            self.stages.close()

    def _train_epoch(self) -> bool:
        """Train the rest of an epoch; return False where a request ended it early."""
        position = self.position
        first = len(position.done)
        self.stages.begin(first)
        self._limit = steps = len(self.stages.sizes)
        self._wanted = _NOTHING
        begin = time.perf_counter()
        self.logs.done(position.step)
        self._count = 0
        self._sums.zero_()
        done = self._run(steps)
        position.train_seconds += time.perf_counter() - begin
        position.done |= set(range(first, first + done))
        if done > 2:
            self.step_s.append((time.perf_counter() - begin) / done)
        # After the last step `_finish_epoch` saves.
        self._act(replace(self._wanted, save=self._wanted.save and done < steps))
        if self._wanted.pause:
            self._pause()
        return done == steps

    def _run(self, steps: int) -> int:
        """Run the steps of an epoch up to the limit; return their number."""
        job, position = self.job, self.position
        consensus = StepConsensus(self.talk, job.programme.blocks, self._lag)
        sizes, workers = self.stages.sizes, self.stages.workers
        seen = self.lineage.seen
        advancing = [worker.advance(lambda: self._limit) for worker in workers]
        step = 0
        while step < self._limit:
            for worker in workers:
                # Waiting for a GPU after every part costs time, so only in the first epoch.
                worker.exact = position.epoch == 0 and step >= steps - _TRACED
            if not workers:  # an idle device logs this step's learning rate, too
                self.stages.schedule(step)
            for steps_of_worker in advancing:
                next(steps_of_worker)
            position.step += 1
            seen += sizes[step]
            self.lineage.seen = seen
            if job.rank == 0:
                self.odometer.value = seen
            job.pulse(position.step)
            if step % self._tick == 0:
                save = self.saves.steps_due(position.step)
                asked = self.control.request(save=save)
                consensus.report(step, self.stages.mean_losses(), asked)
            for agreed_on in consensus.agreed_at(step):
                self._follow(*agreed_on, steps=steps)
            step += 1
        for steps_of_worker in advancing:
            next(steps_of_worker, None)  # its last sends leave
        if losses := self.stages.mean_losses():  # of steps after the last report
            consensus.report(step - 1, losses, _NOTHING)
        for agreed_on in consensus.agreed_at(step + self._lag):
            self._follow(*agreed_on, steps=step)
        return step

    def _act(self, wanted: ChangeRequest) -> None:
        """Do what all request; nothing is under way, and all are at the same step."""
        if wanted.save or wanted.stop or wanted.leave:
            self._save()
        if wanted.stop:
            raise RunStopped(f"stopped by the user after step {self.position.step}")
        if wanted.leave:
            raise GenerationEnds

    def _pause(self) -> None:
        """Pause; it does not count as training time, since the epoch's clock has stopped."""

        def act(now: ChangeRequest) -> None:
            self.control.apply(now)
            self._act(now)

        self.control.pause(agree=lambda wish: agreed_by_all(wish, self.talk), act=act)

    def _follow(
        self, step: int, losses: list[float], request: ChangeRequest, *, steps: int
    ) -> None:
        """Take in the sums of an earlier step, which all devices read at the same step."""
        if not all(map(math.isfinite, losses)):
            bad = [b for b, loss in enumerate(losses) if not math.isfinite(loss)]
            raise Diverged(
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
        by_block = (self._sums / max(1, self._count)).tolist()
        loss = sum(by_block) / len(by_block)
        self._log_step(loss, self.stages.train_steps[0].lr, block_losses=by_block)
        self._count = 0
        self._sums.zero_()

    # Between epochs

    def _finish_epoch(self) -> None:
        if self.is_master and self._count:
            self._log()
        counts = torch.from_numpy(self.lineage.counts)
        dist.all_reduce(counts, group=self.talk)  # in place
        self.lineage.finish_epoch(counts.numpy().copy(), self.planned_ids())
        self.gathering.collect()
        seen: Accuracy | None = None
        if self.is_master and self._is_validated():
            job, model, alive = self.job, self.results.model, self.results.alive
            batch = job.recipe.evaluate_batch
            recalibrate(model, job.samples, job.recalibrate, batch, alive)
            seen = self._validated()
        self._share_trace()
        self._next_epoch(seen)
        self._save(collected=True)

    def _share_trace(self) -> None:
        """Send the spans of the epoch's last steps to the master."""
        local_spans = [span for worker in self.stages.workers for span in worker.spans]
        for worker in self.stages.workers:
            worker.spans.clear()
        newest = max((span.step for span in local_spans), default=0)
        last = [span for span in local_spans if span.step > newest - _TRACED]
        spans = [s for each in from_all(last, list[Span], self.talk) for s in each]
        if self.job.rank == 0 and spans:
            self.job.on_trace(spans)

    def _save(self, *, collected: bool = False) -> None:
        """Write a checkpoint on the master; all devices must call this."""
        job = self.job
        self.saves.done(self.position.step)
        counts = torch.from_numpy(self.lineage.counts.copy())
        if not collected:
            self.gathering.collect()
            dist.all_reduce(counts, group=self.talk)
        if job.rank == 0:
            tensors: dict[str, Tensor] = {"lineage.counts": counts}
            blocks: list[checkpoint.OptimizerFacts] = []
            for block in range(len(job.cutting.pairs)):
                block_tensors, facts = self.gathering.packed(block)
                tensors |= {f"block.{block}.{k}": v for k, v in block_tensors.items()}
                blocks.append(facts)
            programme = to_builtins(job.programme)
            self._write_checkpoint(
                BlockwiseFacts, tensors, blocks=blocks, programme=programme
            )
        dist.barrier(
            group=self.talk
        )  # no device continues before the checkpoint is complete

    def finish(self) -> MemberResult:
        """Test and export the student; on the master only."""
        median = float(np.median(self.step_s)) if self.step_s else 0.0
        return self._finished({"step_s": median})
