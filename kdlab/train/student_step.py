"""One step of a student on one batch (EDL-Dist, Algorithm 2, line 5)."""

import copy
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from kdlab.models.device_feed import DeviceFeed
from kdlab.papers.shares import shared_rows
from kdlab.soft_labels.source import Batch, MixedLabels
from kdlab.train.aggregation.ranks import Ranks
from kdlab.train.feature_teaching import FeatureTeaching
from kdlab.train.hard_loss import hard_loss, hard_losses
from kdlab.train.step import TrainStep, steps_per_second
from kdlab.train.student_job import StudentJob
from kdlab.train.sync_norm import make_local


class BatchStep:
    def __init__(self, job: StudentJob, train_step: TrainStep) -> None:
        self.job, self.train_step = job, train_step
        self.feed = DeviceFeed(train_step.device)
        self.head = None if job.head is None else job.head.to(train_step.device)
        self.unlabelled = bool(job.samples.data.unlabelled)
        self.features: FeatureTeaching | None = None
        if job.features is not None:
            self.features = FeatureTeaching(job.features, train_step.model, job.seed)
            train_step.add(self.features.projectors)
        self.drops = 0  # of the learning rate, by the plateau schedule
        self.loss = job.loss  # with its current weights and temperature

    def __call__(
        self, batch: Batch, of_rows: int, *, epoch: float = 0.0, lr_factor: float = 1.0
    ) -> Tensor:
        """Take a step; return this rank's mean loss on its rows of `of_rows`, on the device.

        `epoch` counts finished epochs, with a fraction; `lr_factor` multiplies the schedule.
        """
        ranks, train_step = self.job.ranks, self.train_step
        batch.refuse_nonsense()
        tensors = [batch.views, batch.labels, *([] if batch.soft is None else [batch.soft])]
        views, labels, *soft = self.feed.to_device(*tensors)
        rows, mixed = len(batch.ids), batch.mixed
        train_step.listen(taught=bool(soft))
        factor, batches = lr_factor * ranks.lr_scale, self.job.samples.plan.batches
        train_step.at(epoch, batches, factor, self.drops)

        def loss_of(part: slice) -> Tensor:
            both = train_step.both_scores(views[part])
            taught = soft[0][part] if soft else None
            mix = mixed and MixedLabels(mixed.others[part], mixed.share[part])
            return self._loss(both, labels[part], taught, mix, epoch)

        loss = train_step.gradients(
            rows,
            self._parts(of_rows),
            loss_of,
            lambda loss: ranks.weigh(loss, rows, of_rows),
        )
        if self.features is not None:
            ranks.average_gradients(self.features.projectors)
        train_step.update()
        self.feed.wait()  # the source may now overwrite the batch
        return loss

    def _parts(self, of_rows: int) -> int:
        """Return the parts of a batch: equal on all ranks, whose norms synchronise in each."""
        if self.job.recipe.accumulate == 1:
            return 1
        return self.train_step.parts(
            min(shared_rows(of_rows, self.job.samples.part.shares))
        )

    def _loss(
        self,
        both: tuple[Tensor, Tensor],
        labels: Tensor,
        soft_labels: Tensor | None,
        mixed: MixedLabels | None,
        epoch: float,
    ) -> Tensor:
        """Return α φ + β ψ plus the losses of features; without a teacher φ. In float32."""
        scores, taught = both
        hard, labels = self._hard(scores, labels, mixed)
        spec = self.loss
        if spec is None or soft_labels is None:
            return hard
        teacher = soft_labels.float()
        if self.head is not None:
            teacher = self.head(teacher)
        inner = scores.new_zeros(())
        if self.features is not None:
            inner, classes = self.features(teacher), self.features.job.classes
            if not classes:  # of foundation models, which have none
                return spec.hard_weight * hard + inner
            teacher = teacher[:, :classes]
        soft = spec.soft(taught, teacher, labels)
        return torch.add(
            spec.hard_weight * hard + inner, soft, alpha=spec.soft_weight_at(epoch)
        )

    def _hard(
        self, scores: Tensor, labels: Tensor, mixed: MixedLabels | None
    ) -> tuple[Tensor, Tensor]:
        """Return φ, and the labels for losses that treat the target class separately.

        Of two mixed images each label has its share of φ; the label of the larger one is returned.
        """
        recipe = self.job.recipe
        if mixed is None and not self.unlabelled:
            return hard_loss(recipe, scores, labels), labels
        each = partial(hard_losses, recipe, scores)
        if mixed is None:
            return each(labels).mean(), labels
        others, share = mixed.others.to(labels.device), mixed.share.to(labels.device)
        hard = (share * each(labels) + (1 - share) * each(others)).mean()
        return hard, torch.where(share >= 0.5, labels, others)

    def measured_rate(self, seconds: float) -> float:
        """Measure samples/s of a copy, on one batch with artificial soft labels."""
        samples = self.job.samples
        ids = samples.batches(0)[0]
        views = torch.from_numpy(samples.views(ids, 0))
        labels = torch.from_numpy(samples.labels(ids))
        soft = torch.zeros((len(ids), self.job.outputs or samples.classes))
        batch = Batch(0, ids, views, labels, soft)
        with torch.random.fork_rng():
            model = make_local(copy.deepcopy(self.train_step.model)).train()
            train_step = TrainStep(self.job.recipe, model, model, self.train_step.device)
            # Without the other ranks, which may not measure now.
            twin = BatchStep(replace(self.job, ranks=Ranks()), train_step)
            twin.loss = self.loss
            for _ in range(3):
                twin(batch, len(ids))

            def step() -> None:
                samples.views(ids, 0)  # preparing views is part of the student's work
                float(twin(batch, len(ids)))

            return len(ids) * steps_per_second(step, least=5, seconds=seconds)
