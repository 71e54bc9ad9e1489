"""Batches, students and teachers looked at: real runs, real weights."""

import re

import numpy as np
import pytest

import kdlab
from kdlab.errors import BadInput, NotFoundError
from kdlab.experiment.folder import RunFolder
from kdlab.report.calibration import expected_calibration_error
from kdlab.run.outputs.examination import ModelInspection, examine


@pytest.mark.processes
def test_a_finished_run_is_examined(taught):
    inspection = taught.examine()
    assert inspection.students == ["none/seed0", "in_process/seed0"]
    right = {name: top1 for name, top1, *_ in inspection.table()}
    for row in taught.result["runs"]:  # the same weights, the same images
        assert float(right[row["member"]]) == pytest.approx(row["student_top1"], abs=0.01)
    assert float(right["teacher"]) == pytest.approx(taught.result["teacher_top1"], abs=0.01)
    assert set(inspection.calibration()) == {"teacher", *inspection.students}
    rows = inspection.agreement("none/seed0")
    assert "<table" in rows._repr_html_()
    assert sum(row["images"] for row in rows) == len(inspection.ids)
    assert all(0 <= row["agree %"] <= 100 for row in rows)
    pictures = inspection.top_disagreements(3)
    assert pictures.images.shape[0] == len(pictures.lines) == 3
    assert pictures._repr_html_().count("data:image/png;base64,") == 3
    assert_the_mistakes_are_shown(inspection)
    few = taught.examine("validation", most=10)
    assert len(few.ids) == 10
    assert len(set(few.labels)) > 5  # of all classes, however files are sorted
    with pytest.raises(NotFoundError, match="no model named 'served'"):
        inspection.agreement("served")
    assert "student_top1" in taught.result._repr_html_()
    assert taught.id in taught._repr_html_()
    with pytest.raises(NotFoundError, match="has no plan"):
        taught.plans()


@pytest.mark.parametrize(
    ("split", "most"),
    [("train", 10), ("foo", 10), ("test", 0), ("test", -5), ("test", "9")],
)
def test_training_images_and_less_than_one_are_no_held_out_ones(tmp_path, split, most):
    """Accuracy on training images was shown as that of held-out ones."""
    with pytest.raises(BadInput, match="at least 1 image of test or validation"):
        examine(RunFolder(tmp_path), split, most)


def assert_the_mistakes_are_shown(inspection):
    """Check the mistakes of two students, in text, on a page, and as facts."""
    plain, taught = inspection.students
    wrong = inspection.answers[taught].argmax(1) != inspection.labels
    matrix = inspection.confusion(taught)
    assert matrix.confusion.counts.sum() == len(inspection.ids)
    assert np.trace(matrix.confusion.counts) == len(inspection.ids) - wrong.sum()
    assert sum(row["images"] for row in inspection.confused(100, taught)) == wrong.sum()
    shown = matrix._repr_html_()
    opened = re.findall(r'<button type="button" popovertarget="([^"]+)"', shown)
    assert opened
    assert all(f'<div popover id="{name}"' in shown for name in opened)
    assert shown.count("<figure") == shown.count("data:image/png;base64,")
    assert repr(matrix).startswith(f"{taught}: is, taken for")
    worst = inspection.mistakes(1000, taught)
    assert len(worst) == wrong.sum()
    assert all(lines[0] != lines[1].replace("student", "is") for lines in worst.lines)
    rows = inspection.per_class(taught)
    assert rows[0]["recall %"] == min(row["recall %"] for row in rows)
    page = inspection._repr_html_()
    assert page.count("data:image/svg+xml;base64,") == 3  # calibration, how sure each is
    assert "Confusion matrix of the teacher" in page
    facts = inspection.to_json()
    assert [row["name"] for row in facts["students"]] == ["teacher", plain, taught]


def test_a_batch_is_what_the_student_sees(kdlab_home, elsewhere):
    experiment = kdlab.load("smoke/in_process")
    shown = experiment.show_batch(4)
    assert len(shown.images) == 4
    assert all(len(lines) == 4 and lines[1].endswith("%") for lines in shown.lines)
    untaught = experiment.show_batch(2, teacher=False)
    assert np.array_equal(untaught.images, shown.images[:2])
    assert [len(lines) for lines in untaught.lines] == [1, 1]
    with pytest.raises(BadInput, match="a whole number from 1"):
        experiment.show_batch(0)


def test_names_of_classes_are_shown_as_text(digits):
    from dataclasses import replace

    data = replace(digits[0], classes=tuple(f"<b>{k}</b>" for k in range(10)))
    ids = data.test[:20]
    answers = np.full((20, 10), 0.05) + np.eye(10)[data.labels[ids]] * 0.5
    by_model = {"teacher": answers, "none/seed0": answers[::-1]}
    inspection = ModelInspection("it", data, ids, by_model)
    html = inspection._repr_html_() + inspection.top_disagreements(2)._repr_html_()
    assert "<b>0</b>" not in html
    assert "&lt;b&gt;" in html
    error = expected_calibration_error(answers, inspection.labels)
    assert inspection.calibration()["teacher"] == error


@pytest.mark.long
def test_the_registry_is_browsable(elsewhere):
    assert "losses/hinton" in kdlab.registry
    assert "teachers/digits_resnet" in list(kdlab.registry)
    sheet = kdlab.registry["losses/hinton"]
    assert ("temperature", "4.0", "> 0") in sheet.rows
    assert "&gt; 0" in sheet._repr_html_()
    assert "digits_resnet" in kdlab.registry._repr_html_()
    assert "digits_resnet" in repr(kdlab.registry)
    with pytest.raises(NotFoundError, match="Nearest: losses/hinton"):
        kdlab.registry["losses/hintn"]
    with pytest.raises(NotFoundError, match=r'kdlab\.load\("quickstart"\)'):
        kdlab.registry["quickstart"]
    assert all(kdlab.registry[name].name == name for name in kdlab.registry)
