"""Looking at data and models: what a batch is, what student and teacher make of it."""

import html
import json
from collections.abc import Callable, Mapping
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from kdlab.data.images import ImageData
from kdlab.data.splits import by_class
from kdlab.errors import BadInput, NotFoundError
from kdlab.events.event import Event
from kdlab.events.general import Note
from kdlab.events.runs import TeacherTraining
from kdlab.experiment.folder import RunFolder
from kdlab.experiment.setup import TrainingSetup
from kdlab.experiment.spec import ExperimentSpec, spec_of
from kdlab.models.exported import load_exported
from kdlab.report import chart, page
from kdlab.report.calibration import (
    Probabilities,
    agreement,
    disagreements,
    expected_calibration_error,
    reliability,
)
from kdlab.report.chart import Panel
from kdlab.report.page import Rows
from kdlab.report.pictures import Pictures
from kdlab.report.table import text_table_left
from kdlab.train.evaluate import in_batches, probabilities

Split = Literal["test", "validation"]
TEACHER = "teacher"


def show_batch(
    spec: ExperimentSpec, count: int, *, teacher: bool, say: Callable[[str], None]
) -> Pictures:
    """The first images of the first epoch as the student sees them; see `Experiment.show_batch`.

    Raises:
        BadInput: fewer than one image.
    """
    if count < 1:
        raise BadInput(f"{count} images are none; ask for one at least.")
    own = _setup_of(spec, say)
    data = own.data
    ids = own.samples(spec.members()[0]).batches(0)[0][:count]
    views = data.views(ids, 0)
    lines = [[data.label_name(int(k))] for k in data.rows(ids)]
    if teacher and spec.teachers():
        answers = probabilities(own.load_teacher().infer, [views])
        for words, row in zip(lines, answers, strict=True):
            words += [f"{data.classes[k]} {row[k]:.0%}" for k in np.argsort(-row)[:3]]
    return Pictures(views, lines)


class ModelInspection:
    """Student and teacher of a run on images none of them was trained on.

    Args:
        data: of the run.
        ids: rows of it that were looked at.
        answers: probabilities of the teacher and of each training's student, by name.
    """

    def __init__(
        self,
        data: ImageData,
        ids: NDArray[np.integer],
        answers: Mapping[str, Probabilities],
    ) -> None:
        self.data, self.ids, self.answers = data, ids, dict(answers)
        self.labels = data.labels[ids]

    @property
    def students(self) -> list[str]:
        return [name for name in self.answers if name != TEACHER]

    def calibration(self) -> dict[str, float]:
        """Expected calibration error of each, in percent."""
        return {
            name: expected_calibration_error(p, self.labels)
            for name, p in self.answers.items()
        }

    def agreement(self, student: str | None = None) -> Rows:
        """Student and teacher class by class, in percent.

        Raises:
            NotFoundError: no such student, or the run has no teacher.
        """
        mine, theirs = self._of(student), self._of(TEACHER)
        return Rows(
            {
                "class": r.name,
                "images": r.count,
                "agree %": round(r.agree, 1),
                "student %": round(r.student, 1),
                "teacher %": round(r.teacher, 1),
            }
            for r in agreement(mine, theirs, self.labels, self.data.classes)
        )

    def top_disagreements(self, count: int = 8, student: str | None = None) -> Pictures:
        """The images they are furthest apart on.

        Raises:
            NotFoundError: no such student, or the run has no teacher.
        """
        mine, theirs = self._of(student), self._of(TEACHER)
        rows, names = disagreements(mine, theirs, count), self.data.classes
        lines = [
            [
                f"is {names[self.labels[k]]}",
                f"student {names[mine[k].argmax()]} {mine[k].max():.0%}",
                f"teacher {names[theirs[k].argmax()]} {theirs[k].max():.0%}",
            ]
            for k in rows
        ]
        return Pictures(self.data.inputs[self.ids[rows]], lines)

    def reliability(self) -> Panel:
        """Accuracy over confidence of each; on the diagonal one can be believed."""
        curves = {  # seeds of one source share a colour
            name.replace("/", " · "): [
                (100 * b.confidence, 100 * b.accuracy) for b in reliability(p, self.labels)
            ]
            for name, p in self.answers.items()
        }
        ideal = [(0.0, 0.0), (100.0, 100.0)]
        title = "accuracy, % (the diagonal is as good as its word)"
        return Panel(title, curves | {"diagonal": ideal}, across="confidence, %")

    def _of(self, name: str | None) -> Probabilities:
        chosen = name if name is not None else self.students[-1]
        if chosen not in self.answers:
            raise NotFoundError(
                f"This run has nobody named {chosen!r} to look at. There are: "
                f"{', '.join(self.answers)}."
            )
        return self.answers[chosen]

    def table(self) -> list[tuple[str, str, str, str]]:
        """(who, top-1 %, calibration error %, agrees with the teacher %) of each."""
        rows = []
        for name, answers in self.answers.items():
            right = 100 * float((answers.argmax(1) == self.labels).mean())
            error = expected_calibration_error(answers, self.labels)
            same = "-"
            if TEACHER in self.answers and name != TEACHER:
                theirs = self.answers[TEACHER].argmax(1)
                same = f"{100 * float((answers.argmax(1) == theirs).mean()):.1f}"
            rows.append((name, f"{right:.2f}", f"{error:.2f}", same))
        return rows

    def __repr__(self) -> str:
        return text_table_left(_HEAD, self.table())

    def _repr_html_(self) -> str:
        curves = page.image(chart.svg([self.reliability()]))
        parts = [page.table(_HEAD, self.table()), curves]
        if TEACHER in self.answers and self.students:
            name = html.escape(self.students[-1])
            parts.append(f"<div><b>{name} and its teacher</b></div>")
            parts.append(self.agreement()._repr_html_())
        return "".join(parts)


_HEAD = ("", "top-1 %", "calibration error %", "agrees with the teacher %")


def examine(run: RunFolder, split: Split, most: int) -> ModelInspection:
    """What every finished training of a run, and its teacher, say of the same images.

    Raises:
        NotFoundError: nothing has been trained yet.
        BadInput: the split is empty.
    """
    own = _setup_of(spec_of(run), lambda line: None)  # who looks knows what is trained
    data = own.data
    ids = getattr(data, split)
    if not len(ids):
        raise BadInput(f"This data has no {split} images. Choose another split.")
    ids, _ = by_class(ids, data.labels, most, 0)  # files are sorted by class
    batches = in_batches(ids)
    answers: dict[str, Probabilities] = {}
    if was_taught(run):
        answers[TEACHER] = probabilities(
            own.load_teacher().infer, data.shown_ahead(batches)
        )
    for member in own.spec.members():
        folder = run.member(member.name)
        whole = folder / "whole" / "student.safetensors"
        path = whole if whole.is_file() else folder / "student.safetensors"
        if path.is_file():
            answers[member.name] = probabilities(
                load_exported(path), data.shown_ahead(batches)
            )
    if not set(answers) - {TEACHER}:
        raise NotFoundError(
            f"Run {run.run_id} has no student yet. Wait for its first training to end."
        )
    return ModelInspection(data, ids, answers)


def was_taught(run: RunFolder) -> bool:
    """Whether it had a teacher: one that was never asked is not trained to be looked at."""
    kept = run.path.rglob("members/**/result.json")
    return any(json.loads(p.read_text()).get("teacher_top1") is not None for p in kept)


def _setup_of(spec: ExperimentSpec, say: Callable[[str], None]) -> TrainingSetup:
    def ignore(event: Event) -> None:
        if isinstance(event, Note | TeacherTraining):
            say(event.text())

    return TrainingSetup(spec, emit=ignore, emit_teacher=ignore)
