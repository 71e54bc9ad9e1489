"""The first images of the first epoch, as the student sees them."""

from collections.abc import Callable

import numpy as np

from kdlab.events.event import Event
from kdlab.events.general import Note
from kdlab.events.runs import TeacherTraining
from kdlab.experiment.setup import TrainingSetup
from kdlab.experiment.spec import ExperimentSpec
from kdlab.report.pictures import Pictures
from kdlab.run.outputs.prediction import require_count
from kdlab.train.evaluate import probabilities


def show_batch(
    spec: ExperimentSpec, count: int, *, teacher: bool, say: Callable[[str], None]
) -> Pictures:
    """Return the first images as the student sees them; see `Experiment.show_batch`.

    Raises:
        BadInput: `count` is no whole number from 1.
    """
    require_count(count, "images")
    setup = setup_of(spec, say)
    data = setup.data
    ids = setup.samples(spec.members()[0]).batches(0)[0][:count]
    views = data.views(ids, 0)
    lines = [[data.label_name(int(k))] for k in data.rows(ids)]
    if teacher and not all(one.headless for one in spec.teachers()):
        answers = probabilities(setup.load_teacher(logits=True).infer, [views])
        for words, row in zip(lines, answers, strict=True):
            words += [f"{data.classes[k]} {row[k]:.0%}" for k in np.argsort(-row)[:3]]
    return Pictures(views, lines)


def setup_of(spec: ExperimentSpec, say: Callable[[str], None]) -> TrainingSetup:
    """Return the setup of a spec for inspection; `say` gets lines on data and teacher training."""

    def forward(event: Event) -> None:
        if isinstance(event, Note | TeacherTraining):
            say(event.text())

    return TrainingSetup(spec, emit=forward, emit_teacher=forward)
