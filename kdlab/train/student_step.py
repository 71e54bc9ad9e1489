"""Line 5 of Algorithm 2 of EDL-Dist: one step of a student on one batch."""

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
from kdlab.train.sync_norm import leave_alone


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
        self.loss = job.loss  # with the weights and the temperature that it has now

    def __call__(
        self, batch: Batch, of_rows: int, *, epoch: float = 0.0, lr_factor: float = 1.0
    ) -> Tensor:
        """This rank's mean loss on its rows of `of_rows` of all ranks, still on the device.

        So many an `epoch` is over, this one's share included; `lr_factor` is on top of the
        schedule.
        """
        ranks, train_step = self.job.ranks, self.train_step
        batch.refuse_nonsense()
        given = [batch.views, batch.labels, *([] if batch.soft is None else [batch.soft])]
        views, labels, *soft = self.feed.to_device(*given)
        rows, mixed = len(batch.ids), batch.mixed
        train_step.listen(taught=bool(soft))
        factor, batches = lr_factor * ranks.lr_scale, self.job.samples.plan.batches
        train_step.at(epoch, batches, factor, self.drops)

        def loss_of(part: slice) -> Tensor:
            both = train_step.both_scores(views[part])
            taught = soft[0][part] if soft else None
            own = mixed and MixedLabels(mixed.others[part], mixed.share[part])
            return self._loss(both, labels[part], taught, own, epoch)

        loss = train_step.gradients(
            rows,
            self._parts(of_rows),
            loss_of,
            lambda loss: ranks.weigh(loss, rows, of_rows),
        )
        if self.features is not None:
            ranks.average_gradients(self.features.projectors)
        train_step.update()
        self.feed.wait()  # the source may overwrite the batch from now on
        return loss

    def _parts(self, of_rows: int) -> int:
        """Parts of a batch: the same on all ranks, whose norms meet in each."""
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
        """α φ + β ψ, and what inner outputs add; plain φ without a teacher. In float32."""
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
            if not classes:  # of foundation models, which know none
                return spec.hard_weight * hard + inner
            teacher = teacher[:, :classes]
        soft = spec.soft(taught, teacher, labels)
        return torch.add(
            spec.hard_weight * hard + inner, soft, alpha=spec.soft_weight_at(epoch)
        )

    def _hard(
        self, scores: Tensor, labels: Tensor, mixed: MixedLabels | None
    ) -> tuple[Tensor, Tensor]:
        """φ, and the label that counts for losses that treat the target class apart.

        Of two images in one view each label has its share of φ, and the larger one counts.
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
        """Samples/s of a copy, on one batch with made-up soft labels."""
        samples = self.job.samples
        ids = samples.batches(0)[0]
        views = torch.from_numpy(samples.views(ids, 0))
        labels = torch.from_numpy(samples.labels(ids))
        soft = torch.zeros((len(ids), self.job.outputs or samples.classes))
        batch = Batch(0, ids, views, labels, soft)
        with torch.random.fork_rng():
            model = leave_alone(copy.deepcopy(self.train_step.model)).train()
            own = TrainStep(self.job.recipe, model, model, self.train_step.device)
            # The others may be measuring nothing now.
            twin = BatchStep(replace(self.job, ranks=Ranks()), own)
            twin.loss = self.loss
            for _ in range(3):
                twin(batch, len(ids))

            def step() -> None:
                samples.views(ids, 0)  # preparing views is part of the student's work
                float(twin(batch, len(ids)))

            return len(ids) * steps_per_second(step, least=5, seconds=seconds)
