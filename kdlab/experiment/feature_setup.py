"""What an experiment's `features` come to for its two networks: taps, shapes, misfits."""

from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor

from kdlab.cluster.teachers.probe import probe_images
from kdlab.data.images import ImageData
from kdlab.errors import ModelError
from kdlab.features.feature_loss import FeatureLossSpec
from kdlab.models.model import Normalised
from kdlab.models.with_features import shapes_of, tap_of
from kdlab.train.feature_teaching import FeatureJob


def feature_job(
    losses: Sequence[FeatureLossSpec],
    teacher: Normalised,
    student: Normalised,
    data: ImageData,
) -> FeatureJob:
    """Where inner outputs are taken, and their shapes.

    Raises:
        ModelError: a module that is not there, or outputs that cannot be compared.
    """
    views = two_images(data)
    device = next(student.parameters()).device
    taps = [tap_of(student, loss.student, views.to(device)) for loss in losses]
    own = shapes_of(student, taps, views.to(device))
    theirs = shapes_of(teacher, teacher_taps(losses, teacher, data), views)
    for number, loss in enumerate(losses):
        if why := loss.misfit(own[number], theirs[number]):
            raise ModelError(
                f"features.{number} ({loss.component}) compares {loss.student} with "
                f"{loss.teacher}: {why}."
            )
    return FeatureJob(
        losses=tuple(losses),
        taps=tuple(taps),
        own=tuple(own),
        theirs=tuple(theirs),
        classes=len(data.classes),
    )


def teacher_taps(
    losses: Sequence[FeatureLossSpec], teacher: Normalised, data: ImageData
) -> tuple[str, ...]:
    """Where the teacher's outputs are taken, for each loss."""
    views = two_images(data)
    return tuple(tap_of(teacher, loss.teacher, views) for loss in losses)


def two_images(data: ImageData) -> Tensor:
    """(2, C, H, W) uint8 noise, to see what a network does with such images."""
    return torch.from_numpy(probe_images(data.shape))[:2]


def row_of(taps: Sequence[str], teacher: Normalised, data: ImageData) -> int:
    """Numbers of an answer: logits, and the outputs at these taps."""
    views = two_images(data)
    return len(data.classes) + sum(map(prod, shapes_of(teacher, taps, views)))
