"""Line 5 of Algorithm 2 of EDL-Dist: one step of a student on one batch."""

import copy

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from kdlab.data.splits import NO_LABEL
from kdlab.models.device_feed import DeviceFeed
from kdlab.soft_labels.source import Batch, MixedLabels
from kdlab.train.recipe import lr_at
from kdlab.train.step import Descent, steps_per_second
from kdlab.train.student_job import StudentJob
from kdlab.train.sync_norm import leave_alone


class BatchStep:
    def __init__(self, job: StudentJob, descent: Descent) -> None:
        self.job, self.descent = job, descent
        self.feed = DeviceFeed(descent.device)
        self.head = None if job.head is None else job.head.to(descent.device)
        self.unlabelled = bool(job.samples.data.unlabelled)
        self.loss = job.loss  # with the weights and the temperature that it has now

    def __call__(
        self, batch: Batch, of_rows: int, *, epoch: float = 0.0, lr_factor: float = 1.0
    ) -> Tensor:
        """This rank's mean loss on its rows of `of_rows` of all ranks, still on the device.

        So many an `epoch` is over, this one's share included; `lr_factor` is on top of the
        schedule.
        """
        recipe, ranks = self.job.recipe, self.job.ranks
        given = [batch.views, batch.labels]
        views, labels, *soft = self.feed.moved(
            *given, *([] if batch.soft is None else [batch.soft])
        )
        scores = self.descent.scores(views)
        loss = self._loss(scores, labels, soft[0] if soft else None, batch.mixed)
        batches = self.job.samples.plan.batches
        lr = lr_factor * ranks.lr_scale * lr_at(recipe, epoch, batches)
        self.descent(ranks.weigh(loss, len(labels), of_rows), lr)
        self.feed.wait()  # the source may overwrite the batch from now on
        return loss.detach()

    def _loss(
        self,
        scores: Tensor,
        labels: Tensor,
        soft_labels: Tensor | None,
        mixed: MixedLabels | None,
    ) -> Tensor:
        """α φ + β ψ; plain φ without a teacher. In float32 whatever the precision."""
        hard, labels = self._hard(scores, labels, mixed)
        spec = self.loss
        if spec is None or soft_labels is None:
            return hard
        teacher = soft_labels.float()
        if self.head is not None:
            teacher = self.head(teacher)
        soft = spec.soft(scores, teacher, labels)
        return torch.add(spec.hard_weight * hard, soft, alpha=spec.soft_weight)

    def _hard(
        self, scores: Tensor, labels: Tensor, mixed: MixedLabels | None
    ) -> tuple[Tensor, Tensor]:
        """φ, and the label that counts for losses that treat the target class apart.

        Of two images in one view each label has its share of φ, and the larger one counts.
        """
        smoothing = self.job.recipe.label_smoothing
        if mixed is None and not self.unlabelled:
            return cross_entropy(scores, labels, label_smoothing=smoothing), labels

        def each(said: Tensor) -> Tensor:
            """(N,): 0 where there is no label, whoever of several ranks has it."""
            return cross_entropy(
                scores,
                said,
                ignore_index=NO_LABEL,
                label_smoothing=smoothing,
                reduction="none",
            )

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
            model = leave_alone(copy.deepcopy(self.descent.model)).train()
            own = Descent(self.job.recipe, model, model, self.descent.device)
            twin = BatchStep(self.job, own)
            twin.loss = self.loss
            for _ in range(3):
                twin(batch, len(ids))

            def step() -> None:
                samples.views(ids, 0)  # preparing views is part of the student's work
                float(twin(batch, len(ids)))

            return len(ids) * steps_per_second(step, least=5, seconds=seconds)
