"""Distillation of inner outputs (features): projectors, and the losses behind them."""

from dataclasses import dataclass
from math import log, prod

import torch
from torch import Tensor, nn

from kdlab.features.balance import Balance
from kdlab.features.feature_loss import FeatureLossSpec, Shape, match_resolution
from kdlab.models.with_features import Taps


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureJob:
    """Compared outputs of student and teacher: one entry per loss, in the order of a row."""

    losses: tuple[FeatureLossSpec, ...]
    taps: tuple[str, ...]  # of the student
    student_shapes: tuple[Shape, ...]  # of the student's outputs
    teacher_shapes: tuple[Shape, ...]  # of the teacher's outputs
    classes: int  # logits before them in a row of the source
    # Moments of the teachers' outputs; None where they are not balanced
    statistics: tuple[Tensor | None, ...] = ()

    @property
    def outputs(self) -> int:
        """Numbers per sample in a row of the source."""
        return self.classes + sum(map(prod, self.teacher_shapes))

    def features_of(self, rows: Tensor) -> list[Tensor]:
        """(N, D) of the source -> (N, ...) for each loss."""
        sizes = [self.classes, *map(prod, self.teacher_shapes)]
        _, *flat = rows.split(sizes, dim=1)
        shapes = zip(flat, self.teacher_shapes, strict=True)
        return [part.reshape(-1, *shape) for part, shape in shapes]


class FeatureHead(nn.Module):
    """Modules of one loss: a projector, the balance of its teacher, a learned weight."""

    def __init__(
        self, loss: FeatureLossSpec, student: Shape, teacher: Shape, moments: Tensor | None
    ) -> None:
        super().__init__()
        self.loss = loss
        self.project = loss.projection(student, teacher)
        self.balance: nn.Module = nn.Identity()
        if moments is not None:
            self.balance = Balance(moments, loss.balance)
        # s of Kendall et al.; exp(-s) is the weight
        start = torch.tensor(-log(loss.weight)) if loss.learn_weight else None
        self.log_variance = None if start is None else nn.Parameter(start)

    def forward(self, student: Tensor, teacher: Tensor) -> Tensor:
        student, teacher = match_resolution(self.project(student), self.balance(teacher))
        distance = self.loss.distance(student, teacher)
        if self.log_variance is None:
            return self.loss.weight * distance
        return torch.exp(-self.log_variance) * distance + self.log_variance


class FeatureTeaching:
    """Losses between inner outputs of the student and the teacher.

    Args:
        job: the compared outputs.
        model: the student on its device, its network behind its normalisation.
        seed: of the projectors' first weights.
    """

    def __init__(self, job: FeatureJob, model: nn.Module, seed: int) -> None:
        self.job = job
        self._taps = Taps(model.get_submodule("net"), job.taps)
        device = next(model.parameters()).device
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            statistics = job.statistics or (None,) * len(job.losses)
            shapes = job.student_shapes, job.teacher_shapes
            heads = [
                FeatureHead(*parts)
                for parts in zip(job.losses, *shapes, statistics, strict=True)
            ]
        self.projectors = nn.ModuleList(heads).to(device)

    def __call__(self, rows: Tensor) -> Tensor:
        """Return the weighted sum of all losses.

        Args:
            rows: (N, D) of the source; the student has just computed the same samples.
        """
        if rows.is_inference():  # of a teacher in this process; autograd cannot save them
            rows = rows.clone()
        both = zip(self._taps.take(), self.job.features_of(rows), strict=True)
        total = rows.new_zeros(())
        for head, (student, teacher) in zip(self.projectors, both, strict=True):
            total = total + head(student.float(), teacher)
        return total
