"""A student's inner outputs beside its teacher's: projectors, and the losses between them."""

from dataclasses import dataclass
from math import log, prod

import torch
from torch import Tensor, nn

from kdlab.features.balance import Balance
from kdlab.features.feature_loss import FeatureLossSpec, Shape, match_resolution
from kdlab.models.with_features import Taps


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureJob:
    """What is compared, and where: one entry of each for every loss, in the order of a row."""

    losses: tuple[FeatureLossSpec, ...]
    taps: tuple[str, ...]  # of the student
    own: tuple[Shape, ...]  # of the student's outputs
    theirs: tuple[Shape, ...]  # of the teacher's
    classes: int  # logits before them in a row of the source
    # Moments of each teacher's outputs; None where they are not balanced
    statistics: tuple[Tensor | None, ...] = ()

    @property
    def outputs(self) -> int:
        """Numbers that the source gives of each sample."""
        return self.classes + sum(map(prod, self.theirs))

    def features_of(self, rows: Tensor) -> list[Tensor]:
        """(N, D) of the source -> (N, ...) for each loss."""
        sizes = [self.classes, *map(prod, self.theirs)]
        _, *flat = rows.split(sizes, dim=1)
        shapes = zip(flat, self.theirs, strict=True)
        return [part.reshape(-1, *shape) for part, shape in shapes]


class FeatureHead(nn.Module):
    """What one loss has at the student: a projector, its teacher's balance, its learned weight."""

    def __init__(
        self, loss: FeatureLossSpec, own: Shape, theirs: Shape, found: Tensor | None
    ) -> None:
        super().__init__()
        self.loss = loss
        self.project = loss.projection(own, theirs)
        self.balance = nn.Identity() if found is None else Balance(found, loss.balance)
        # s of Kendall et al.; exp(-s) is the weight
        start = torch.tensor(-log(loss.weight)) if loss.learn_weight else None
        self.log_variance = None if start is None else nn.Parameter(start)

    def forward(self, own: Tensor, theirs: Tensor) -> Tensor:
        student, teacher = match_resolution(self.project(own), self.balance(theirs))
        distance = self.loss.distance(student, teacher)
        if self.log_variance is None:
            return self.loss.weight * distance
        return torch.exp(-self.log_variance) * distance + self.log_variance


class FeatureTeaching:
    """Takes what the student computes, and says how far it is from the teacher.

    Args:
        job: what is compared.
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
            made = [
                FeatureHead(*parts)
                for parts in zip(job.losses, job.own, job.theirs, statistics, strict=True)
            ]
        self.projectors = nn.ModuleList(made).to(device)

    def __call__(self, rows: Tensor) -> Tensor:
        """The sum of all losses, each times its weight.

        Args:
            rows: (N, D) of the source; the student has just computed the same samples.
        """
        if (
            rows.is_inference()
        ):  # of a teacher in this process: autograd keeps none of those
            rows = rows.clone()
        both = zip(self._taps.take(), self.job.features_of(rows), strict=True)
        total = rows.new_zeros(())
        for head, (own, theirs) in zip(self.projectors, both, strict=True):
            total = total + head(own.float(), theirs)
        return total
