"""Measure a teacher on the data of its experiment before it teaches.

A teacher with weights from elsewhere may have other classes, another order of classes or another
normalisation. None of this raises an error, and the student learns nonsense. So each teacher
first predicts images with known labels.
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

_MOST = 10_000  # images per split
_ERRORS = 3.0  # standard errors by which another order of classes must match better
_FITS = 0.5  # share of images that renamed classes must match


def measured(
    teacher: PreparedTeachers, data: ImageData, device: str, batch: int
) -> TeacherMeasure:
    """Return a teacher's measure on this data, cached by its weights and the images."""
    test, validation = _some(data, data.test), _some(data, data.validation)
    rows = [str(ids.tolist()) for ids in (test, validation)]
    parts = [teacher.fingerprint, data.digest, *rows]
    path = home() / "teachers" / "measured" / f"{key_of('|'.join(parts))}.json"
    measure = recall_as(TeacherMeasure, path, "The teacher is measured anew.")
    if measure is None:
        with torch.random.fork_rng():
            infer = teacher.load(data, device).infer
        measure = _measure(
            infer, data, in_batches(test, batch), in_batches(validation, batch)
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, to_builtins(measure))
    return measure


def _some(data: ImageData, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return all rows, or at most `_MOST`, drawn by class."""
    if len(rows) <= _MOST:
        return rows
    return by_class(rows, data.labels, _MOST, 0)[0]


def _measure(
    infer: Callable[[Tensor], Tensor],
    data: ImageData,
    test: list[NDArray[np.int64]],
    validation: list[NDArray[np.int64]],
) -> TeacherMeasure:
    """Measure predictions on batches of rows."""
    shares = probabilities(infer, data.shown_ahead(test))
    labels = data.labels[np.concatenate(test)]
    top = np.argsort(-shares, axis=1)[:, : min(5, len(data.classes))]
    hits = top == labels[:, None]
    counts = np.bincount(labels, minlength=len(data.classes))
    validation_top1, validated = None, dict[str, float]()
    predicted, labelled = top[:, 0], labels
    if validation:
        predicted = probabilities(infer, data.shown_ahead(validation)).argmax(1)
        labelled = data.labels[np.concatenate(validation)]
        validation_top1 = 100 * float((predicted == labelled).mean())
        validated = _by_class(predicted, labelled, data.classes, f1=True)
    renamed, taken_for = _renamed(predicted, labelled, data.classes)
    watched = answers(infer, data, watched_rows(data))
    return TeacherMeasure(
        split="test",
        images=len(labels),
        top1=100 * float(hits[:, 0].mean()),
        top5=100 * float(hits.any(1).mean()),
        guessing=100 * float(counts.max() / len(labels)),
        calibration_error=expected_calibration_error(shares, labels),
        confidence=100 * float(shares.max(1).mean()),
        per_class=_by_class(top[:, 0], labels, data.classes),
        validation_top1=validation_top1,
        validation_f1=validated,
        renamed=renamed,
        taken_for=taken_for,
        said=watched.said,
        shares=watched.shares,
    )


def _by_class(
    predicted: NDArray[np.int64],
    labels: NDArray[np.int64],
    classes: tuple[str, ...],
    *,
    f1: bool = False,
) -> dict[str, float]:
    """Return recall, or F1, in percent for each class that has images."""
    counts, guesses = (np.bincount(x, minlength=len(classes)) for x in (labels, predicted))
    hits = np.bincount(labels[predicted == labels], minlength=len(classes))
    sums = (counts + guesses) / 2 if f1 else counts
    return {
        name: 100 * float(hits[k] / sums[k]) for k, name in enumerate(classes) if counts[k]
    }


def check_validation(data: ImageData) -> None:
    """Check that there are validation images to weigh teachers by.

    Raises:
        TeacherRefused: the data has no validation images.
    """
    if not len(data.validation):
        raise TeacherRefused(
            f"combine.weigh is validation, and {data.name} has no validation images. Set aside "
            "some (data.validation_share), or set combine.weigh=cards."
        )


def validated(
    teachers: PreparedTeachers, data: ImageData, device: str, batch: int
) -> PreparedTeachers:
    """Weigh teachers per class by their F1 on validation images.

    (By recall, a teacher that always predicts one class would be perfect at it.) A class that a
    teacher never recognises, or that has no images there, counts one percent: no weight is 0.

    Raises:
        TeacherRefused: the data has no validation images.
    """
    check_validation(data)
    measures = [
        measured(replace(teachers, members=(member,)), data, device, batch)
        for member in teachers.members
    ]
    weights = tuple(
        tuple(max(1.0, measure.validation_f1.get(name, 0.0)) for name in data.classes)
        for measure in measures
    )
    return replace(teachers, validated=weights)


def _renamed(
    predicted: NDArray[np.int64], labels: NDArray[np.int64], classes: tuple[str, ...]
) -> tuple[dict[str, str], list[str]]:
    """Find exchanged classes; return predicted to true class, and a line for each.

    The best one-to-one assignment of predictions to labels consists of cycles of exchanged
    classes; a cycle counts where it matches most of its images, and more than by chance.
    """
    from scipy.optimize import linear_sum_assignment

    table = np.zeros((len(classes), len(classes)), np.int64)
    np.add.at(table, (predicted, labels), 1)
    match, rest = linear_sum_assignment(table, maximize=True)[1], set(range(len(classes)))
    renamed, counts, images = dict[str, str](), list[str](), table.sum(0)
    while rest:
        cycle = [min(rest)]
        while (following := int(match[cycle[-1]])) != cycle[0]:
            cycle.append(following)
        rest -= set(cycle)
        new, old = int(table[cycle, match[cycle]].sum()), int(table[cycle, cycle].sum())
        if new - old > _ERRORS * (new + old) ** 0.5 and new > _FITS * images[cycle].sum():
            for k in cycle:
                label, answer = classes[match[k]], classes[k]
                renamed[answer] = label
                share = f"{table[k, match[k]]} of {images[match[k]]}"
                counts.append(f"your {label!r} for {answer!r} in {share} images")
    return renamed, counts


def check_teacher(
    teacher: PreparedTeachers, data: ImageData, device: str, batch: int, emit: Emit
) -> TeacherMeasure:
    """Measure a teacher, emit the results, and refuse it below its card's `min_top1`.

    Args:
        teacher: prepared teacher.
        data: data of the experiment.
        device: device of the measurement.
        batch: images per batch.
        emit: gets the measure and the findings of checks.

    Raises:
        TeacherRefused: its accuracy is below its `min_top1`.
    """
    measure = measured(teacher, data, device, batch)
    emit(from_builtins(TeacherMeasured, to_builtins(measure)))
    emit(ImagesAnswered(step=0, epoch=0, said=measure.said, shares=measure.shares))
    for finding in checked(measure):
        emit(finding)
    reached = measure.top1 if measure.validation_top1 is None else measure.validation_top1
    split = "test" if measure.validation_top1 is None else "validation"
    for member in teacher.members if len(teacher.members) == 1 else ():
        min_top1 = member.spec.min_top1
        if min_top1 is not None and reached < min_top1:
            raise TeacherRefused(
                f"The teacher {member.weights} reaches {reached:.2f} % on {split}, and min_top1 "
                f"demands {min_top1:g} %. {measure.doubt} Correct its weights, classes or "
                "normalisation (model.mean, model.std), or lower min_top1."
            )
    return measure
