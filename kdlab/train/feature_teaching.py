"""A student's inner outputs beside its teacher's: projectors, and the losses between them."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor, nn

from kdlab.features.feature_loss import FeatureLossSpec, Shape, meeting
from kdlab.models.with_features import Taps


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureJob:
    """What is compared, and where: one entry of each for every loss, in the order of a row."""

    losses: tuple[FeatureLossSpec, ...]
    taps: tuple[str, ...]  # of the student
    own: tuple[Shape, ...]  # of the student's outputs
    theirs: tuple[Shape, ...]  # of the teacher's
    classes: int  # logits before them in a row of the source

    @property
    def outputs(self) -> int:
        """Numbers that the source gives of each sample."""
        return self.classes + sum(map(prod, self.theirs))


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
            made = [
                loss.projection(own, theirs)
                for loss, own, theirs in zip(job.losses, job.own, job.theirs, strict=True)
            ]
        self.projectors = nn.ModuleList(made).to(device)

    def __call__(self, features: Tensor) -> Tensor:
        """The sum of all losses, each times its weight.

        Args:
            features: (N, D) of the teacher, all flat, one behind the other; the student has
                just computed the same samples.
        """
        if (
            features.is_inference()
        ):  # of a teacher in this process: autograd keeps none of those
            features = features.clone()
        total = features.new_zeros(())
        found: Sequence[Tensor] = self._taps.taken()
        at = 0
        for loss, own, shape, project in zip(
            self.job.losses, found, self.job.theirs, self.projectors, strict=True
        ):
            theirs = features[:, at : at + prod(shape)].reshape(-1, *shape)
            at += prod(shape)
            student, teacher = meeting(project(own.float()), theirs)
            total = total + loss.weight * loss.distance(student, teacher)
        return total
