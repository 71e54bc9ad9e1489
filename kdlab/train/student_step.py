"""Line 5 of Algorithm 2 of EDL-Dist: one step of a student on one batch."""

import copy
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy
from torch.nn.parallel import DistributedDataParallel

from kdlab.data.splits import NO_LABEL
from kdlab.models.device_feed import DeviceFeed
from kdlab.papers.shares import shared_rows
from kdlab.soft_labels.source import Batch, MixedLabels
from kdlab.train.aggregation.ranks import Ranks
from kdlab.train.feature_teaching import FeatureTeaching
from kdlab.train.schedules import lr_at
from kdlab.train.step import Descent, steps_per_second
from kdlab.train.student_job import StudentJob
from kdlab.train.sync_norm import leave_alone

# Views, labels, soft labels, and what is mixed in
_Part = tuple[Tensor, Tensor, Tensor | None, MixedLabels | None]


class BatchStep:
    def __init__(self, job: StudentJob, descent: Descent) -> None:
        self.job, self.descent = job, descent
        self.feed = DeviceFeed(descent.device)
        self.head = None if job.head is None else job.head.to(descent.device)
        self.unlabelled = bool(job.samples.data.unlabelled)
        self.features: FeatureTeaching | None = None
        if job.features is not None:
            self.features = FeatureTeaching(job.features, descent.model, job.seed)
            descent.add(self.features.projectors)
        # Of the last step; groups of parameters may have shares of it.
        self.lr = job.recipe.lr
        self.drops = 0  # of the learning rate, by the plateau schedule
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
        batch.refuse_nonsense()
        moved = self.feed.moved(*given, *([] if batch.soft is None else [batch.soft]))
        rows, losses = len(batch.ids), list[Tensor]()
        self.descent.listen(taught=batch.soft is not None)
        self.descent.begin()
        rounds = recipe.rounds_at(epoch)
        parts = self._parts(moved, batch.mixed, self._count_of_parts(of_rows))
        for number, (views, labels, soft, mixed) in enumerate(parts):
            with self._alone(last=number == len(parts) - 1):
                both = self.descent.both_scores(views, in_eight_bits=rounds)
                loss = self._loss(both, labels, soft, mixed, epoch)
                if len(parts) > 1:
                    loss = loss * (len(labels) / rows)
                self.descent.backward(ranks.weigh(loss, rows, of_rows))
            losses.append(loss.detach())
        if self.features is not None:
            ranks.average_gradients(self.features.projectors)
        batches = self.job.samples.plan.batches
        self.lr = lr_factor * ranks.lr_scale * lr_at(recipe, epoch, batches, self.drops)
        self.descent.update(self.lr)
        self.feed.wait()  # the source may overwrite the batch from now on
        return losses[0] if len(losses) == 1 else torch.stack(losses).sum()

    def _count_of_parts(self, of_rows: int) -> int:
        """Parts of a batch: the same on all ranks, whose norms meet in each; two rows at least."""
        wanted = self.job.recipe.accumulate
        if wanted == 1:
            return 1
        least = min(shared_rows(of_rows, self.job.samples.part.shares))
        return max(1, min(wanted, least // 2))

    def _parts(
        self, moved: Sequence[Tensor], mixed: MixedLabels | None, count: int
    ) -> list[_Part]:
        """Views, labels, soft labels and what is mixed in, of each part of a batch."""
        if count == 1:
            views, labels, *soft = moved
            return [(views, labels, soft[0] if soft else None, mixed)]
        found, cut = list[_Part](), [tensor.tensor_split(count) for tensor in moved]
        others = share = None
        if mixed is not None:
            others, share = (
                mixed.others.tensor_split(count),
                mixed.share.tensor_split(count),
            )
        for number, (views, labels, *soft) in enumerate(zip(*cut, strict=True)):
            part = None
            if others is not None and share is not None:
                part = MixedLabels(others[number], share[number])
            found.append((views, labels, soft[0] if soft else None, part))
        return found

    def _alone(self, *, last: bool) -> AbstractContextManager[object]:
        """Ranks average their gradients once, behind the last part."""
        model = self.descent.run_model
        if last or not isinstance(model, DistributedDataParallel):
            return nullcontext()
        return model.no_sync()

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
            classes = self.features.job.classes
            teacher, features = teacher[:, :classes], teacher[:, classes:]
            inner = self.features(features)
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
        smoothing = self.job.recipe.label_smoothing
        binary = self.job.recipe.hard_loss == "bce"
        if mixed is None and not self.unlabelled and not binary:
            return cross_entropy(scores, labels, label_smoothing=smoothing), labels

        def each(said: Tensor) -> Tensor:
            """(N,): 0 where there is no label, whoever of several ranks has it."""
            if binary:
                return binary_cross_entropy(scores, said, smoothing)
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
            # The others may be measuring nothing now.
            twin = BatchStep(replace(self.job, ranks=Ranks()), own)
            twin.loss = self.loss
            for _ in range(3):
                twin(batch, len(ids))

            def step() -> None:
                samples.views(ids, 0)  # preparing views is part of the student's work
                float(twin(batch, len(ids)))

            return len(ids) * steps_per_second(step, least=5, seconds=seconds)


def binary_cross_entropy(scores: Tensor, labels: Tensor, smoothing: float) -> Tensor:
    """Each class by itself, as "ResNet strikes back" trains (arXiv:2110.00476, section 3).

    Args:
        scores: (N, C) logits.
        labels: (N,) true classes; `NO_LABEL` counts nothing.
        smoothing: spread evenly over all classes.

    Returns:
        (N,) means over the classes, as timm's BinaryCrossEntropy.
    """
    known, classes = labels != NO_LABEL, scores.shape[1]
    targets = torch.full_like(scores, smoothing / classes)
    rows = torch.arange(len(labels), device=labels.device)
    targets[rows, labels.clamp_min(0)] += 1 - smoothing
    each = binary_cross_entropy_with_logits(scores, targets, reduction="none").mean(1)
    return each * known
