"""Files of students, the first batch, confusion matrices, and the student in MLflow."""

import base64
import io
import json
import math
import shutil
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image
from tests_support import event, student_card
from written_runs import result_of

import kdlab
from kdlab.errors import BadInput, DataError, NotFoundError, WeightsError
from kdlab.events.general import Note, Warned
from kdlab.events.log import EventLog
from kdlab.events.runs import TeacherTraining
from kdlab.experiment.folder import RunFolder
from kdlab.models.model import export
from kdlab.models.patch_net import PatchNet
from kdlab.run.outputs import first_batch
from kdlab.run.outputs.confusion_matrix import ConfusionMatrix
from kdlab.run.outputs.first_batch import setup_of, show_batch
from kdlab.run.outputs.mlflow_student import PyfuncStudent, _load_pyfunc
from kdlab.run.outputs.prediction import StudentAtWork
from kdlab.run.outputs.student_files import (
    better_of,
    is_student,
    member_folder,
    newest_of,
    started,
    student_file,
)

# Where students lie


@pytest.fixture
def run(tmp_path):
    return RunFolder(tmp_path / "runs" / "r1")


def write(run, name, kind="models/patch_net", best=False):
    folder = run.member(name)
    folder.mkdir(parents=True)
    (folder / "student.json").write_text(json.dumps(student_card(model={"type": kind})))
    (folder / "student.safetensors").touch()
    if best:
        (folder / "best.safetensors").touch()
    return folder


def test_the_student_that_the_result_describes_is_meant_when_none_is_named(run):
    for name in ("none/seed0", "in_process/seed0", "in_process/seed1"):
        write(run, name)
    assert member_folder(run, None) == run.member("in_process/seed0")  # the first there is
    run.write_status(state="finished", result={"source": "none"})
    assert member_folder(run, None) == run.member("none/seed0")
    assert member_folder(run, "in_process/seed1") == run.member("in_process/seed1")
    run.write_status(result={"source": "served"})  # nobody of it has ended
    assert member_folder(run, None) == run.member("in_process/seed0")


def validated(run, name, last, best=None, teacher=None):
    facts = {"validation_last": last, "validation_best": best or last}
    result_of(name, teacher_top1=teacher, **facts).write(write(run, name, best=True))


def test_of_several_the_best_on_validation_is_taken_and_it_is_said(run):
    validated(run, "none/seed0", 66.0, best=75.0)
    none, taught = run.member("none/seed0"), run.member("in_process/seed0")
    assert student_file(run, None, best=False) == (none / "student.safetensors", "")
    assert better_of(run) == ""  # there is one
    validated(run, "in_process/seed0", 70.1, teacher=80.0)
    words = "in_process/seed0, 70.1 % on validation; none/seed0 has 66.0"
    taken = (taught / "student.safetensors", f"taken: {words}")
    assert student_file(run, None, best=False) == taken
    assert better_of(run) == f"kdlab export takes {words}."
    # It was better once.
    assert student_file(run, None, best=True)[0] == none / "best.safetensors"
    assert student_file(run, "none/seed0", best=True) == (none / "best.safetensors", "")


def test_of_equal_ones_the_taught_one_is_taken(run):
    run.write_status(state="finished", result={"source": "none"})
    for name, teacher in (("cached/seed0", None), ("served/seed0", 80.0)):
        validated(run, name, 70.0, teacher=teacher)
    assert student_file(run, None, best=False)[0].parent == run.member("served/seed0")
    validated(run, "none/seed0", math.nan)  # who cannot be compared: as the result says
    assert student_file(run, None, best=False)[0].parent == run.member("none/seed0")


def test_what_has_not_ended_is_said_with_what_has(run):
    run.path.mkdir(parents=True)
    with pytest.raises(NotFoundError, match="Finished: none"):
        member_folder(run, None)
    write(run, "none/seed0")
    with pytest.raises(NotFoundError, match=r"member served/seed0.*Finished: none/seed0"):
        member_folder(run, "served/seed0")


@pytest.mark.parametrize("model", [{}, {"type": 3}])
def test_a_card_without_the_type_of_its_model_is_named(run, model):
    card = write(run, "none/seed0") / "student.json"
    card.write_text(json.dumps(student_card(model=model)))
    with pytest.raises(
        WeightsError, match=r"student\.json is damaged: its model has no type"
    ):
        member_folder(run, None)


@pytest.mark.parametrize("damage", [None, b"", b"\xff{\n", b"{}\n", "dataset", "classes"])
def test_a_log_without_its_start_is_named(run, damage):
    run.path.mkdir(parents=True)
    facts = {"name": "photos", "classes": 3, "shape": [3, 8, 8], "test": 9}
    log = EventLog(run.events)
    log.emit(event("run_started", run_id="r1", dataset=facts))
    log.close()
    begun = started(run)
    assert begun.run_id == "r1"
    assert {name: getattr(begun.dataset, name) for name in facts} == facts
    why = ""
    if isinstance(damage, str):
        line = json.loads(run.events.read_text().splitlines()[-1])
        wrong = line["dataset"] | {"classes": "many"} if damage == "classes" else {}
        why = r".*classes.*\(line 1\)" if wrong else "a field is missing"
        damage = json.dumps(line | {"dataset": wrong}).encode() + b"\n"
    run.events.unlink() if damage is None else run.events.write_bytes(damage)
    with pytest.raises(
        BadInput, match=rf"r1 has a damaged log: .*events\.jsonl does not.*{why}"
    ):
        started(run)


def test_the_whole_student_is_newer_than_its_blocks(run):
    blocks = write(run, "tr/seed0")
    assert newest_of(blocks) == blocks
    chosen = write(run, "tr/seed0/whole", best=True)
    assert newest_of(blocks) == chosen
    assert member_folder(run, None) == chosen
    assert student_file(run, None, best=False)[0] == chosen / "student.safetensors"
    assert student_file(run, "tr/seed0", best=True)[0] == chosen / "best.safetensors"


def test_a_student_of_the_best_epoch_may_not_be_there_yet(run):
    write(run, "none/seed0")
    with pytest.raises(NotFoundError, match=r"best\.safetensors does not exist"):
        student_file(run, None, best=True)


def test_a_library_of_blocks_is_no_student(run):
    library = write(run, "puzzle/seed0", kind="models/block_library")
    assert not is_student(library)
    assert not is_student(run.member("nothing"))
    with pytest.raises(NotFoundError, match="Finished: none"):
        member_folder(run, None)
    write(run, "puzzle/seed0/whole")  # what was chosen of it
    assert is_student(library)


# The first batch


def spec(*settings):
    return kdlab.load("smoke/in_process", *settings).spec


def test_the_first_batch_is_of_the_plan_and_named(elsewhere):
    lines = []
    shown = show_batch(spec(), 5, teacher=False, say=lines.append)
    setup = setup_of(spec(), lines.append)
    ids = setup.samples(spec().members()[0]).batches(0)[0][:5]
    assert np.array_equal(shown.images, setup.data.views(ids, 0))
    names = [setup.data.label_name(int(k)) for k in setup.data.rows(ids)]
    assert shown.lines == [[name] for name in names]
    assert not any("training the teacher" in line for line in lines)


def test_a_teacher_says_its_three_likeliest_surest_first(elsewhere, monkeypatch):
    monkeypatch.setattr(
        first_batch.TrainingSetup, "load_teacher", lambda setup, logits: Teacher()
    )

    class Teacher:
        infer = None

    def fixed_probabilities(infer, views):
        return np.tile(np.array([0.05, 0.6, 0.25] + [0.1 / 7] * 7, np.float32), (2, 1))

    monkeypatch.setattr(first_batch, "probabilities", fixed_probabilities)
    lines = show_batch(spec(), 2, teacher=True, say=print).lines
    assert [line[1:] for line in lines] == [["1 60%", "2 25%", "0 5%"]] * 2
    without_teacher = kdlab.load("smoke/none", "teacher=null").spec
    assert without_teacher.teachers() == ()
    assert len(show_batch(without_teacher, 2, teacher=True, say=print).lines[0]) == 1


@pytest.mark.parametrize("count", [0, -3, "2"])
def test_no_image_is_no_batch(count):
    with pytest.raises(BadInput, match="ask for a whole number from 1"):
        show_batch(spec(), count, teacher=False, say=print)


def test_who_looks_hears_of_data_and_teachers_and_nothing_else():
    lines = []
    setup = setup_of(spec(), lines.append)
    setup._emit(Note(message="decoding"))
    setup._emit_teacher(TeacherTraining(folder="there", epochs=2))
    setup._emit(Warned(message="of a run alone"))
    assert lines == [
        "decoding", "training the teacher (2 epochs); later runs reuse it",
    ]  # fmt: skip


# A confusion matrix


@pytest.fixture
def matrix(digits):
    """Make a matrix of (true class, predicted class, probability) for each image."""

    def of(pairs, classes=("cat", "<dog>", "cow")):
        labels = np.array([true for true, _, _ in pairs])
        probabilities = np.zeros((len(pairs), len(classes)))
        for row, (_, chosen, sure) in enumerate(pairs):
            probabilities[row] = (1 - sure) / (len(classes) - 1)
            probabilities[row, chosen] = sure
        data = replace(digits[0], classes=classes, labels=labels)
        return ConfusionMatrix(data, np.arange(len(pairs)), probabilities, "student")

    return of


def test_counts_are_by_class_and_what_it_was_taken_for(matrix):
    counted = matrix([(0, 0, 0.9), (0, 1, 0.8), (0, 1, 0.7), (2, 0, 0.6)])
    assert counted.confusion.counts.tolist() == [[1, 2, 0], [0, 0, 0], [1, 0, 0]]
    lines = repr(counted).splitlines()
    assert lines[0].startswith("student: is, taken for")
    assert [line.split() for line in lines if line.startswith("cat")] == [
        ["cat", "1", "2", "0"]
    ]


def test_a_cell_opens_its_images_the_surest_first_and_says_how_many_more(matrix):
    counted = matrix([(0, 1, 0.5 + k / 20) for k in range(9)])
    inside = counted._images((0, 1))
    shares = [0.9, 0.85, 0.8, 0.75, 0.7, 0.65]
    assert inside.count("<figure") == 6
    places = [inside.index(f"<figcaption>{share:.0%}") for share in shares]
    assert places == sorted(places)
    assert "and 3 more" in inside
    assert "more" not in matrix([(0, 1, 0.9)])._images((0, 1))


def test_the_page_names_classes_as_text_and_cells_by_what_was_said(matrix):
    first, second = matrix([(0, 1, 0.9)]), matrix([(0, 2, 0.9)])
    shown = first._repr_html_()
    assert "&lt;dog&gt;" in shown
    assert "<dog>" not in shown
    assert shown == matrix([(0, 1, 0.9)])._repr_html_()
    name = shown.partition('popovertarget="')[2].partition('"')[0]
    assert name.startswith("kd-")
    assert name.endswith("-0-1")
    assert name not in second._repr_html_()  # two of them may be on one page


# A student in MLflow


@pytest.fixture
def student(digits, tmp_path):
    spec = PatchNet(patch=4, width=8)
    path = tmp_path / "model" / "student.safetensors"
    path.parent.mkdir()
    export(spec.build(10, 1), spec, path, digits[0])
    return path


@pytest.fixture
def pictures(digits):
    data, _ = digits
    encoded = []
    for pixels in data.inputs[data.test[:4]]:
        written = io.BytesIO()
        Image.fromarray(pixels.squeeze()).save(written, "PNG")
        encoded.append(written.getvalue())
    return encoded


def test_mlflow_asks_with_bytes_base64_paths_or_a_table(student, pictures, tmp_path):
    import pandas as pd

    model = _load_pyfunc(str(student.parent))
    assert isinstance(model, PyfuncStudent)
    answers = StudentAtWork(student)(pictures, top=10)
    (tmp_path / "one.png").write_bytes(pictures[0])
    texts = [base64.b64encode(one).decode() for one in pictures]
    asked = [pictures, pd.DataFrame({"image": pictures}), pd.DataFrame({"any": texts})]
    for images in asked:
        predicted = model.predict(images)
        assert list(predicted["class"]) == [one.top for one in answers]
        assert list(predicted["probability"]) == [one.probabilities[0] for one in answers]
    assert model.predict([str(tmp_path / "one.png")])["class"][0] == answers[0].top


def test_probabilities_are_in_the_order_of_the_classes(student, pictures):
    predicted = _load_pyfunc(str(student.parent)).predict(pictures)
    classes = StudentAtWork(student).classes
    for _, row in predicted.iterrows():
        assert len(row["probabilities"]) == len(classes) == 10
        assert sum(row["probabilities"]) == pytest.approx(1, abs=1e-5)
        assert row["probabilities"][classes.index(row["class"])] == row["probability"]
        assert row["probability"] == max(row["probabilities"])


def test_what_is_no_image_is_named(student, pictures):
    model = _load_pyfunc(str(student.parent))
    with pytest.raises((BadInput, DataError), match="image 1"):
        model.predict([pictures[0], b"no image"])
    shutil.rmtree(student.parent)
    with pytest.raises(kdlab.KdlabError):
        _load_pyfunc(str(student.parent))
