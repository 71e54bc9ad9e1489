"""Common base of the loops over a plan of batches: the student's, and that of its blocks.

Counting and resuming, reports, and files on disk.
"""

from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from kdlab.events.general import Warned
from kdlab.events.training import CheckpointSaved, EpochDone, Resumed, StepLogged
from kdlab.losses.soft_loss import LossSpec
from kdlab.models.model import ModelSpec, Normalised, evaluating
from kdlab.train import checkpoint
from kdlab.train.cadence import logging
from kdlab.train.evaluate import Accuracy, answers
from kdlab.train.job import LoopJob, begin_process
from kdlab.train.kept import RevertPoint
from kdlab.train.lineage import Lineage, Odometer
from kdlab.train.loop_control import LoopControl, TunedValues
from kdlab.train.position import LoopFacts, Position, SavedPlan
from kdlab.train.result import MemberResult
from kdlab.train.results import Results

_LOG_EVERY_S = 0.2
_At = TypeVar("_At", bound=LoopFacts)


class PlanLoop:
    """One rank's part of a training; the numbers of `loss` can be tuned while it trains."""

    def __init__(
        self,
        job: LoopJob,
        model: Normalised,
        model_spec: ModelSpec,
        loss: LossSpec | None = None,
        *,
        is_master: bool,
    ) -> None:
        begin_process(job.recipe)
        self.job = job
        self.is_master = is_master  # it evaluates, saves and reports (EDL-Dist 3.4)
        data = job.samples.data
        self.position = Position()
        self.lineage = Lineage.start(len(data.labels), data.train)
        self.odometer = Odometer(job.folder / "odometer")
        self.control = LoopControl(
            job,
            loss,
            lambda: self.position.step,
            before=self._save_revert_point,
            is_first=is_master,
        )
        self.logs = logging(_LOG_EVERY_S, job.recipe.log_every_steps)
        self.results = Results(
            model,
            model_spec,
            data,
            job.folder,
            job.recipe.evaluate_batch,
            alive=lambda: job.pulse(self.position.step),
        )

    def planned_ids(self) -> NDArray[np.int64] | None:
        """Return the ids of the current epoch, where it does not have each image once."""
        plan = self.job.samples.plan
        return None if plan.sampler is None else plan.order(self.position.epoch)

    def _count_from(self, newest: checkpoint.LoadedCheckpoint[_At] | None) -> None:
        """Restore the counters from this checkpoint; None is the start."""
        if newest is not None:
            self.position = newest.facts.restored(self.job.samples.plan.batch)
            counts = newest.tensors["lineage.counts"].numpy()
            self.lineage.restore(counts, newest.facts.lineage)
        if not self.is_master:  # the master continues the counts of all
            self.lineage.counts[:] = 0
            return
        undone = max(0, self.odometer.value - self.lineage.seen)
        self.lineage.rolled_back = self.odometer.roll_back(self.lineage.seen)
        if newest is None:
            return
        for note in newest.notes:
            self.job.emit(Warned(message=note))
        at = self.position
        self.job.emit(Resumed(epoch=at.epoch, step=at.step, rolled_back=undone))

    def _log_step(self, loss: float, lr: float, **more: Any) -> None:
        """Log a step; `more` are fields of `StepLogged`."""
        position, plan = self.position, self.job.samples.plan
        if self.is_master:
            self.job.emit(
                StepLogged(
                    epoch=position.epoch,
                    step=position.step,
                    of_steps=self.job.recipe.epochs * plan.batches,
                    loss=loss,
                    lr=lr,
                    samples_per_second=self.logs.rate(position.step) * plan.batch,
                    samples_seen=self.lineage.seen,
                    **more,
                )
            )
        self.logs.done(position.step)

    def _is_last(self) -> bool:
        return self.position.epoch + 1 == self.job.recipe.epochs

    def _is_validated(self) -> bool:
        """True where the student is validated after this epoch."""
        done = self.position.epoch + 1
        return done % self.job.recipe.evaluate_every == 0 or self._is_last()

    def _validated(self) -> Accuracy:
        """Validate the student, and classify the watched images."""
        results, position = self.results, self.position
        seen = results.validate(position, is_last=self._is_last())
        if len(self.job.watched):
            model = results.model
            device = next(model.parameters()).device
            with evaluating(model):
                predictions = answers(
                    lambda views: model(views.to(device)),
                    results.data,
                    self.job.watched,
                    step=position.step,
                    epoch=position.epoch + 1,
                )
            self.job.emit(predictions)
        return seen

    def _next_epoch(self, seen: Accuracy | None) -> None:
        """Close the counts of this epoch; `seen` is the accuracy after it."""
        position, lineage = self.position, self.lineage
        position.epoch += 1
        position.first_sample = 0
        position.done.clear()
        if not self.is_master:
            return
        self.job.emit(
            EpochDone(
                epoch=position.epoch,
                of_epochs=self.job.recipe.epochs,
                step=position.step,
                samples_per_second=lineage.seen / max(1e-9, position.train_seconds),
                samples_lost=lineage.lost,
                samples_repeated=lineage.repeated,
                validation_top1=None if seen is None else seen.top1,
                validation_top5=None if seen is None else seen.top5,
            )
        )

    def _save_revert_point(self, now: TunedValues, then: TunedValues) -> None:
        """Save the newest checkpoint as the point to go back to from these values."""
        folder, best = self.job.folder / "checkpoints", self.position.best_epoch
        newest = checkpoint.newest_step(folder)
        RevertPoint.read(folder).changed(now, then, newest, best).write(folder)

    def _write_checkpoint(
        self, kind: type[LoopFacts], tensors: dict[str, Tensor], **facts_of_kind: Any
    ) -> None:
        """Write a checkpoint, on the master; the last are facts of `kind` beyond `LoopFacts`."""
        job, step = self.job, self.position.step
        facts = kind(
            position=self.position,
            plan=SavedPlan.from_plan(job.samples.plan),
            samples=len(job.samples.plan.ids),
            lineage=self.lineage.totals(),
            seed=job.seed,
            spec_hash=job.spec_hash,
            **facts_of_kind,
        )
        folder = job.folder / "checkpoints"
        path = checkpoint.save(folder, step, tensors, facts, fence=job.fence)
        job.emit(CheckpointSaved(step=step, path=str(path)))

    def _finished(self, figures: dict[str, float]) -> MemberResult:
        """Test and export the last and the best weights, on the master."""
        result = self.results.finish(self.position, self.lineage, figures)
        self.odometer.close()
        return result
