"""Taps, shapes and statistics for the losses between features of an experiment."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import prod

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

from kdlab.cluster.teachers.probe import probe_images
from kdlab.config.home import home, write_whole
from kdlab.config.kept import key_of, load_or_create
from kdlab.data.images import ImageData
from kdlab.errors import ModelError
from kdlab.features.balance import moments
from kdlab.features.feature_loss import FeatureLossSpec
from kdlab.models.model import Normalised
from kdlab.models.tensor_files import is_complete, read_tensors
from kdlab.models.with_features import shapes_of, tap_of
from kdlab.soft_labels.source import LoadedTeacher
from kdlab.train.evaluate import in_batches
from kdlab.train.feature_teaching import FeatureJob

_IMAGES, _BATCH = 1024, 64  # images for statistics: at most, and at once

Networks = Mapping[str, Normalised]
"""The teachers by their names, in their order."""


def feature_job(
    losses: Sequence[FeatureLossSpec],
    teachers: Networks,
    student: Normalised,
    data: ImageData,
) -> FeatureJob:
    """Find the taps and shapes of all losses; teachers' statistics are added by `add_stats`.

    Raises:
        ModelError: no such module, or outputs that cannot be compared.
    """
    views = two_images(data)
    device = next(student.parameters()).device
    order = [number for name in teachers for number in _numbers(losses, name, teachers)]
    sorted_losses = [losses[number] for number in order]
    taps = [tap_of(student, loss.student, views.to(device)) for loss in sorted_losses]
    shapes = shapes_of(student, taps, views.to(device))
    tapped = zip(teachers.values(), teacher_taps(losses, teachers, data), strict=True)
    targets = [shape for net, names in tapped for shape in shapes_of(net, names, views)]
    for number, loss, *pair in zip(order, sorted_losses, shapes, targets, strict=True):
        if why := loss.misfit(*pair):
            whose = f" of {loss.of}" if loss.of else ""
            raise ModelError(
                f"features.{number} ({loss.component}) compares {loss.student} with "
                f"{loss.teacher}{whose}: {why}."
            )
    return FeatureJob(
        losses=tuple(sorted_losses),
        taps=tuple(taps),
        student_shapes=tuple(shapes),
        teacher_shapes=tuple(targets),
        classes=max(network.num_classes for network in teachers.values()),
    )


def add_stats(
    job: FeatureJob, fingerprint: str, load: Callable[[], LoadedTeacher], data: ImageData
) -> FeatureJob:
    """Add the statistics of the teachers' outputs that losses balance.

    They are of some training images without augmentation, measured once for these teachers, taps
    and images, and kept: a resumed run, and each of several ranks, has the same to the bit.

    Args:
        job: of `feature_job`.
        fingerprint: of the weights of all teachers.
        load: loads all teachers, with their inner outputs, where nothing is kept yet.
        data: whose training images are used.
    """
    rows = np.sort(data.train)[:: -(-len(data.train) // _IMAGES)]
    taps = [(loss.of, loss.teacher) for loss in job.losses]
    parts = [fingerprint, taps, data.digest, data.shape, rows.tolist()]
    path = home() / "teachers" / "balance" / f"{key_of(json.dumps(parts))}.safetensors"

    def make() -> dict[str, Tensor]:
        teacher, sums = load(), dict[str, Tensor]()
        for views in data.shown_ahead(in_batches(rows, _BATCH)):
            answers = job.features_of(teacher.infer(torch.from_numpy(views)))
            for n, features in enumerate(map(moments, answers)):
                sums[str(n)] = sums.get(str(n), 0) + features
        write_whole(path, lambda temporary: save_file(sums, temporary))
        return sums

    sums = load_or_create(
        path, lambda: read_tensors(path) if is_complete(path) else None, make
    )
    wanted = enumerate(loss.balance != "none" for loss in job.losses)
    return replace(
        job, statistics=tuple(sums[str(n)] if yes else None for n, yes in wanted)
    )


def _numbers(losses: Sequence[FeatureLossSpec], name: str, teachers: Networks) -> list[int]:
    """Return the numbers of the losses of a teacher."""
    only = len(teachers) == 1
    return [n for n, loss in enumerate(losses) if loss.of == name or (only and not loss.of)]


def teacher_taps(
    losses: Sequence[FeatureLossSpec], teachers: Networks, data: ImageData
) -> list[tuple[str, ...]]:
    """Return the taps of each teacher, one for each of its losses."""
    views = two_images(data)
    return [
        tuple(
            tap_of(network, losses[n].teacher, views)
            for n in _numbers(losses, name, teachers)
        )
        for name, network in teachers.items()
    ]


def two_images(data: ImageData) -> Tensor:
    """Return (2, C, H, W) uint8 noise, to find the shapes of a network's outputs."""
    return torch.from_numpy(probe_images(data.shape))[:2]


def row_length(taps: Sequence[Sequence[str]], teachers: Networks, data: ImageData) -> int:
    """Return the length of an answer: logits, and the outputs of each teacher at its taps."""
    views, networks = two_images(data), teachers.values()
    shapes = [
        shape
        for network, names in zip(networks, taps, strict=True)
        for shape in shapes_of(network, names, views)
    ]
    return max(network.num_classes for network in networks) + sum(map(prod, shapes))
