"""What a teacher is worth on the data of its experiment, measured before it teaches.

A teacher with weights from elsewhere may know other classes, or these in another order, or be
used to images that are normalised otherwise. Nothing of that raises an error; it makes a student
that learns nonsense. So every teacher is asked about images with known labels first.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kdlab.checks import checked
from kdlab.checks.teacher import TeacherMeasure
from kdlab.codec import from_builtins, to_builtins
from kdlab.config.home import home, recall_as, write_json
from kdlab.config.kept import key_of
from kdlab.data.images import ImageData
from kdlab.data.splits import by_class
from kdlab.data.watched import watched_rows
from kdlab.errors import TeacherRefused
from kdlab.events.event import Emit
from kdlab.events.images import ImagesAnswered
from kdlab.events.runs import TeacherMeasured
from kdlab.report.calibration import expected_calibration_error
from kdlab.train.evaluate import answers, in_batches, probabilities
from kdlab.train.teacher import PreparedTeachers

_MOST = 10_000  # images that are asked about
_ERRORS = 3.0  # standard errors by which another reading has to fit better
_FITS = 0.5  # share of images that renamed answers must fit


def measured(
    teacher: PreparedTeachers, data: ImageData, device: str, batch: int
) -> TeacherMeasure:
    """What it is worth on this data; once for each pair of weights and data, then kept."""
    test, validation = _some(data, data.test), _some(data, data.validation)
    rows = [str(ids.tolist()) for ids in (test, validation)]
    parts = [teacher.fingerprint, data.digest, *rows]
    kept = home() / "teachers" / "measured" / f"{key_of('|'.join(parts))}.json"
    known = recall_as(TeacherMeasure, kept, "The teacher is measured anew.")
    if known is None:
        with torch.random.fork_rng():
            infer = teacher.load(data, device).infer
        known = _measure(
            infer, data, in_batches(test, batch), in_batches(validation, batch)
        )
        kept.parent.mkdir(parents=True, exist_ok=True)
        write_json(kept, to_builtins(known))
    return known


def _some(data: ImageData, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """All, or of very many so many of each class."""
    if len(rows) <= _MOST:
        return rows
    return by_class(rows, data.labels, _MOST, 0)[0]


def _measure(
    infer: Callable[[Tensor], Tensor],
    data: ImageData,
    test: list[NDArray[np.int64]],
    validation: list[NDArray[np.int64]],
) -> TeacherMeasure:
    """On these rows, in batches."""
    found = probabilities(infer, data.shown_ahead(test))
    labels = data.labels[np.concatenate(test)]
    order = np.argsort(-found, axis=1)[:, : min(5, len(data.classes))]
    right = order == labels[:, None]
    counts = np.bincount(labels, minlength=len(data.classes))
    validation_top1, validated = None, dict[str, float]()
    said, known = order[:, 0], labels
    if validation:
        said = probabilities(infer, data.shown_ahead(validation)).argmax(1)
        known = data.labels[np.concatenate(validation)]
        validation_top1 = 100 * float((said == known).mean())
        validated = _by_class(said, known, data.classes, f1=True)
    renamed, taken_for = _renamed(said, known, data.classes)
    few = answers(infer, data, watched_rows(data))
    return TeacherMeasure(
        split="test",
        images=len(labels),
        top1=100 * float(right[:, 0].mean()),
        top5=100 * float(right.any(1).mean()),
        guessing=100 * float(counts.max() / len(labels)),
        calibration_error=expected_calibration_error(found, labels),
        confidence=100 * float(found.max(1).mean()),
        per_class=_by_class(order[:, 0], labels, data.classes),
        validation_top1=validation_top1,
        validation_f1=validated,
        renamed=renamed,
        taken_for=taken_for,
        said=few.said,
        shares=few.shares,
    )


def _by_class(
    said: NDArray[np.int64],
    labels: NDArray[np.int64],
    classes: tuple[str, ...],
    *,
    f1: bool = False,
) -> dict[str, float]:
    """Percent that is right, of each class that has images; or F1, which counts all it says."""
    counts, told = (np.bincount(x, minlength=len(classes)) for x in (labels, said))
    hits = np.bincount(labels[said == labels], minlength=len(classes))
    of = (counts + told) / 2 if f1 else counts
    return {
        name: 100 * float(hits[k] / of[k]) for k, name in enumerate(classes) if counts[k]
    }


def check_validation(data: ImageData) -> None:
    """Whether there are images that teachers can be weighed by.

    Raises:
        TeacherRefused: the data has no validation images.
    """
    if not len(data.validation):
        raise TeacherRefused(
            f"combine.weigh is validation, and {data.name} has no validation images. Set aside "
            "some (data.validation_share), or take combine.weigh=cards."
        )


def validated(
    teachers: PreparedTeachers, data: ImageData, device: str, batch: int
) -> PreparedTeachers:
    """The same teachers, weighed class by class by what each knows of it on validation: F1.

    (Who says one class of all images is always right about that one.) A class that a teacher never
    knows, or that has no images there, counts one percent: no weight is 0.

    Raises:
        TeacherRefused: the data has no validation images.
    """
    check_validation(data)
    each = [
        measured(replace(teachers, members=(member,)), data, device, batch)
        for member in teachers.members
    ]
    weights = tuple(
        tuple(max(1.0, one.validation_f1.get(name, 0.0)) for name in data.classes)
        for one in each
    )
    return replace(teachers, validated=weights)


def _renamed(
    said: NDArray[np.int64], labels: NDArray[np.int64], classes: tuple[str, ...]
) -> tuple[dict[str, str], list[str]]:
    """What answers mean where that is another class than they say, and how often it fits.

    The best one-to-one reading of all answers (an assignment) falls into rings of classes that
    are exchanged; a ring counts where it fits most of its images, and more than chance would.
    """
    from scipy.optimize import linear_sum_assignment

    table = np.zeros((len(classes), len(classes)), np.int64)
    np.add.at(table, (said, labels), 1)
    meant, left = linear_sum_assignment(table, maximize=True)[1], set(range(len(classes)))
    renamed, counts, images = dict[str, str](), list[str](), table.sum(0)
    while left:
        ring = [min(left)]
        while (following := int(meant[ring[-1]])) != ring[0]:
            ring.append(following)
        left -= set(ring)
        fits, now = int(table[ring, meant[ring]].sum()), int(table[ring, ring].sum())
        if fits - now > _ERRORS * (fits + now) ** 0.5 and fits > _FITS * images[ring].sum():
            for k in ring:
                own, answer = classes[meant[k]], classes[k]
                renamed[answer] = own
                often = f"{table[k, meant[k]]} of {images[meant[k]]}"
                counts.append(f"your {own!r} for {answer!r} in {often} images")
    return renamed, counts


def check_teacher(
    teacher: PreparedTeachers, data: ImageData, device: str, batch: int, emit: Emit
) -> TeacherMeasure:
    """Measure it, say what was found, and refuse what its card does not allow.

    Args:
        teacher: with its weights.
        data: of the experiment.
        device: it is asked on.
        batch: images at a time.
        emit: gets the figures, and what checks of it found.

    Raises:
        TeacherRefused: it stays below its `min_top1`.
    """
    found = measured(teacher, data, device, batch)
    emit(from_builtins(TeacherMeasured, to_builtins(found)))
    emit(ImagesAnswered(step=0, epoch=0, said=found.said, shares=found.shares))
    for finding in checked(found):
        emit(finding)
    reached = found.top1 if found.validation_top1 is None else found.validation_top1
    part = "test" if found.validation_top1 is None else "validation"
    for member in teacher.members if len(teacher.members) == 1 else ():
        least = member.spec.min_top1
        if least is not None and reached < least:
            raise TeacherRefused(
                f"The teacher {member.weights} reaches {reached:.2f} % on {part}, and min_top1 "
                f"demands {least:g} %. {found.doubt} Mend its weights, classes or "
                "normalisation (model.mean, model.std), or lower min_top1."
            )
    return found
