"""Examination of a run's students and teacher on images held out from their training."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from kdlab.checks import checked
from kdlab.checks.training import ExaminedFacts
from kdlab.data.images import ImageData
from kdlab.data.splits import by_class
from kdlab.errors import BadInput, NotFoundError
from kdlab.events.checks import CheckMade
from kdlab.events.log import read_all
from kdlab.events.run_state import run_state
from kdlab.experiment.folder import RunFolder
from kdlab.experiment.setup import TrainingSetup
from kdlab.experiment.spec import spec_of
from kdlab.models.exported import load_exported
from kdlab.report import check_table, page
from kdlab.report.calibration import (
    Probabilities,
    agreement,
    disagreements,
    expected_calibration_error,
    reliability,
)
from kdlab.report.chart import Panel
from kdlab.report.check_table import worst_first
from kdlab.report.histogram import confidence_histogram
from kdlab.report.page import Card, CardPage, Presentable, Rows
from kdlab.report.pictures import Pictures
from kdlab.report.table import text_table_left
from kdlab.run.outputs.confusion_matrix import ConfusionMatrix
from kdlab.run.outputs.data_facts import facts_of
from kdlab.run.outputs.first_batch import setup_of
from kdlab.run.outputs.lookalikes import looked_closely
from kdlab.run.outputs.student_files import is_student, newest_of, was_taught
from kdlab.train.evaluate import in_batches, probabilities

Split = Literal["test", "validation"]
TEACHER = "teacher"
_FEW, _MANY = 12, 30  # pictures of a kind, rows of classes, in a notebook
_SOME = 5  # images of a class, for a check that its student predicts the class at all


class ModelInspection(Presentable):
    """Predictions of a run's students and teacher on held-out images.

    Args:
        name: title: the run, the number of images and the split.
        data: data set of the run.
        ids: rows of the data set that were examined.
        answers: probabilities (images, classes) of the teacher and of each student, by name.
        described: the student taken where none is named; None is the last one.
        before: findings of the run's checks.
    """

    def __init__(
        self,
        name: str,
        data: ImageData,
        ids: NDArray[np.integer],
        answers: Mapping[str, Probabilities],
        described: str | None = None,
        before: Sequence[CheckMade] = (),
    ) -> None:
        self.name, self.data, self.ids, self.answers = name, data, ids, dict(answers)
        self.labels, self._before = data.labels[ids], before
        self.described = described if described in self.answers else self.students[-1]

    @property
    def students(self) -> list[str]:
        return [name for name in self.answers if name != TEACHER]

    @property
    def is_taught(self) -> bool:
        """True where the run had a teacher."""
        return TEACHER in self.answers

    def calibration(self) -> dict[str, float]:
        """Return the expected calibration error of each model, in percent."""
        return {
            name: expected_calibration_error(p, self.labels)
            for name, p in self.answers.items()
        }

    def agreement(self, student: str | None = None) -> Rows:
        """Return accuracies and agreement of student and teacher by class, in percent.

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

    def per_class(self, who: str | None = None) -> Rows:
        """Return recall and precision of each class in percent, the lowest recall first.

        Raises:
            NotFoundError: no such student, or the run has no teacher.
        """
        confusion = self.confusion(who).confusion
        counts, classes = confusion.counts, self.data.classes
        rows = []
        for number, images in enumerate(counts.sum(1)):
            if not images:
                continue
            hits, taken = counts[number, number], counts[:, number].sum()
            others = counts[number].copy()
            others[number] = 0
            rows.append(
                {
                    "class": classes[number],
                    "images": int(images),
                    "recall %": round(100 * float(hits / images), 1),
                    "precision %": round(100 * float(hits / taken), 1) if taken else None,
                    "most often taken for": classes[others.argmax()]
                    if others.any()
                    else "",
                }
            )
        return Rows(sorted(rows, key=lambda row: float(str(row["recall %"]))))

    def confused(self, most: int = 10, who: str | None = None) -> Rows:
        """Return the most common confusions: class, taken for, images.

        Raises:
            NotFoundError: no such student, or the run has no teacher.
        """
        matrix, names = self.confusion(who).confusion, self.data.classes
        return Rows(
            {
                "class": names[true],
                "taken for": names[predicted],
                "images": int(matrix.counts[true, predicted]),
            }
            for true, predicted in matrix.confused(most)
        )

    def mistakes(self, count: int = _FEW, who: str | None = None) -> Pictures:
        """Return the most confident mistakes, as pictures.

        Raises:
            NotFoundError: no such student, or the run has no teacher.
        """
        shares = self._of(who)
        wrong = np.flatnonzero(shares.argmax(1) != self.labels)
        rows = wrong[np.argsort(-shares.max(1)[wrong], kind="stable")][:count]
        return self._pictures(rows, who)

    def top_disagreements(self, count: int = 8, student: str | None = None) -> Pictures:
        """Return the images with the largest disagreement of student and teacher.

        Raises:
            NotFoundError: no such student, or the run has no teacher.
        """
        mine, theirs = self._of(student), self._of(TEACHER)
        return self._pictures(disagreements(mine, theirs, count), student)

    def confusion(self, who: str | None = None) -> ConfusionMatrix:
        """Return the confusion matrix; in a notebook a cell opens its images.

        Raises:
            NotFoundError: no such student, or the run has no teacher.
        """
        chosen = who or self.described
        return ConfusionMatrix(self.data, self.ids, self._of(chosen), chosen)

    def reliability(self) -> Panel:
        """Plot accuracy over confidence of each model; the diagonal is perfect calibration."""
        curves = {  # seeds of one source share a colour
            name.replace("/", " · "): [
                (100 * b.confidence, 100 * b.accuracy) for b in reliability(p, self.labels)
            ]
            for name, p in self.answers.items()
        }
        ideal = [(0.0, 0.0), (100.0, 100.0)]
        curves |= {"perfect": ideal}
        return Panel("Calibration", curves, across="confidence, %", unit="accuracy, %")

    def confidences(self) -> list[Panel]:
        """Plot the confidence of student and teacher where they are right, and where wrong."""
        return [
            confidence_histogram(
                f"Confidence of {name}", shares.max(1), shares.argmax(1) == self.labels
            )
            for name in dict.fromkeys((self.described, TEACHER))
            if (shares := self.answers.get(name)) is not None
        ]

    def checks(self) -> list[CheckMade]:
        """Return findings of the run's checks and of this examination: issues first."""
        return worst_first([*self._before, *self.findings()])

    def findings(self) -> list[CheckMade]:
        """Return the findings of this examination on the students' predictions."""
        some = np.flatnonzero(np.bincount(self.labels) >= _SOME)
        vanished = {
            name: [self.data.classes[k] for k in np.setdiff1d(some, p.argmax(1))]
            for name, p in self.answers.items()
            if name != TEACHER
        }
        return checked(ExaminedFacts(vanished=vanished))

    def to_json(self) -> dict[str, Any]:
        """Return figures and findings for scripts."""
        return {
            "checks": [one.to_json() for one in self.checks()],
            "images": len(self.ids),
            "described": self.described,
            "students": [dict(zip(_KEYS, row, strict=True)) for row in self._figures()],
            "per_class": list(self.per_class()),
            "confused": list(self.confused()),
        }

    def table(self) -> list[tuple[str, str, str, str]]:
        """Return (model, top-1 %, calibration error %, agrees with the teacher %) rows."""
        return [
            (name, f"{right:.2f}", f"{error:.2f}", "-" if same is None else f"{same:.1f}")
            for name, right, error, same in self._figures()
        ]

    def __repr__(self) -> str:
        pairs = [[str(v) for v in row.values()] for row in self.confused(5)]
        head = [f"{self.described}: class", "taken for", "images"]
        confused = f"\n\n{text_table_left(head, pairs)}" if pairs else ""
        checks = check_table.in_words(self.checks(), passed=False)
        return f"{text_table_left(_HEAD, self.table())}{confused}\n\n{checks}".rstrip()

    def _repr_html_(self) -> str:
        return self.document(_MANY).html()

    def document(self, most: int | None = None) -> CardPage:
        """Return all results as a page, with at most `most` classes; None is all."""
        name = self.described
        cards = [
            Card("Results", page.table(_HEAD, self.table())),
            *check_table.cards(self.checks()),
            Card(f"Confusion matrix of {name}", self.confusion().html()),
        ]
        if len(wrong := self.mistakes()):
            cards.append(Card(f"Most confident mistakes of {name}", wrong.html()))
        if self.is_taught:
            apart = self.top_disagreements(_FEW).html()
            cards.append(Card("Largest disagreements with the teacher", apart))
        cards += [
            Card("Classes, lowest recall first", self._classes(most)),
            *page.charts([self.reliability()]),
            *page.charts(self.confidences()),
        ]
        if self.is_taught:
            matrix = self.confusion(TEACHER).html()
            folded = f"<details><summary>show</summary>{matrix}</details>"
            cards.append(Card("Confusion matrix of the teacher", folded))
        return CardPage(self.name, cards)

    def _classes(self, most: int | None) -> str:
        rows = self.per_class()
        theirs = {r["class"]: r for r in self.agreement()} if self.is_taught else {}
        for row in rows:
            if both := theirs.get(row["class"]):
                row |= {"teacher recall %": both["teacher %"], "agree %": both["agree %"]}
        shown = Rows(rows[:most])
        more = len(rows) - len(shown)
        note = [f"and {more} more: examine().per_class()"] if more else []
        return shown.table() + page.lines(note)

    def _figures(self) -> list[tuple[str, float, float, float | None]]:
        rows = []
        for name, answers in self.answers.items():
            right = 100 * float((answers.argmax(1) == self.labels).mean())
            error = expected_calibration_error(answers, self.labels)
            same = None
            if self.is_taught and name != TEACHER:
                theirs = self.answers[TEACHER].argmax(1)
                same = 100 * float((answers.argmax(1) == theirs).mean())
            rows.append((name, right, error, same))
        return rows

    def _of(self, name: str | None) -> Probabilities:
        chosen = name if name is not None else self.described
        if chosen not in self.answers:
            raise NotFoundError(
                f"This run has no model named {chosen!r}. It has: "
                f"{', '.join(self.answers)}."
            )
        return self.answers[chosen]

    def _pictures(self, rows: NDArray[np.integer], who: str | None) -> Pictures:
        """Images with their class and the predictions of a student and the teacher."""
        names, chosen = self.data.classes, who or self.described
        asked = dict.fromkeys((chosen, *([TEACHER] if self.is_taught else [])))
        lines = [
            [
                f"is {names[self.labels[k]]}",
                *(
                    f"{TEACHER if one == TEACHER else 'student'} "
                    f"{names[p[k].argmax()]} {p[k].max():.0%}"
                    for one in asked
                    for p in [self._of(one)]
                ),
            ]
            for k in rows
        ]
        return Pictures(self.data.inputs[self.ids[rows]], lines)


_KEYS = ("name", "top1", "calibration_error", "agrees_with_teacher")
_HEAD = ("model", "top-1 %", "calibration error %", "agrees with the teacher %")


def examine(
    run: RunFolder,
    split: Split,
    most: int,
    setup: TrainingSetup | None = None,
    *,
    closely: bool = False,
) -> ModelInspection:
    """Collect predictions of every finished student and of the teacher on the same images.

    Args:
        run: a run with at least one finished training.
        split: of its data.
        most: images at most, with each class in its share.
        setup: of the run; None builds it.
        closely: also search for near-duplicate images and labels that look wrong.

    Raises:
        NotFoundError: no training has finished yet.
        BadInput: the split is empty or no held-out one, or `closely` finds no network to use.
    """
    if split not in ("test", "validation") or not isinstance(most, int) or most < 1:
        raise BadInput(
            f"split={split!r}, most={most!r}: examine at least 1 image of test or validation."
        )
    run_setup = setup or setup_of(spec_of(run), lambda line: None)
    data = run_setup.data
    ids = getattr(data, split)
    if not len(ids):
        raise BadInput(f"This data has no {split} images. Choose another split.")
    ids, _ = by_class(ids, data.labels, most, 0)  # files are sorted by class
    batches = in_batches(ids)
    answers: dict[str, Probabilities] = {}
    if was_taught(run) and run_setup.teacher.knowing.members:
        infer = run_setup.load_teacher(logits=True).infer
        answers[TEACHER] = probabilities(infer, data.shown_ahead(batches))
    for member in run_setup.spec.members():
        folder = run.member(member.name)
        path = newest_of(folder) / "student.safetensors"
        if is_student(folder) and path.is_file():
            answers[member.name] = probabilities(
                load_exported(path), data.shown_ahead(batches)
            )
    if not set(answers) - {TEACHER}:
        raise NotFoundError(
            f"Run {run.run_id} has no student yet. Wait for its first training to end."
        )
    source = run_setup.spec.described()
    described = [m.name for m in run_setup.spec.members() if m.source_name == source]
    name = f"{run.run_id}: {len(ids):,} {split} images"
    before = [*run_state(read_all(run.events)).checks.values()]
    if closely:
        single = TEACHER in answers and len(run_setup.teacher.members) == 1
        network = run_setup.teacher_model() if single else None
        before += checked(looked_closely(data, facts_of(data), network))
    chosen = described[0] if described else None
    return ModelInspection(name, data, ids, answers, chosen, before)
