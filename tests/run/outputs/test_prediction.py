"""The table of a student's answers: complete, in order, and safe in a spreadsheet."""

import csv
import io
import os
import zipfile
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from PIL import Image

from kdlab.errors import BadInput, DataError
from kdlab.models.model import export
from kdlab.models.patch_net import PatchNet
from kdlab.run.outputs import prediction
from kdlab.run.outputs.prediction import LABELS, StudentAtWork, answers, label


@pytest.fixture
def student(digits, tmp_path):
    path = tmp_path / "student.safetensors"
    spec = PatchNet(patch=4, width=8)
    export(spec.build(10, 1), spec, path, digits[0])
    return str(path)


@pytest.fixture
def photos(digits, tmp_path):
    data, _ = digits
    folder = tmp_path / "photos"
    (folder / "more").mkdir(parents=True)
    for k, pixels in enumerate(data.inputs[data.test[:7]]):
        Image.fromarray(pixels.squeeze()).save(folder / "more" / f"{k}.png")
    return folder


def table(path):
    head, *rows = csv.reader(path.open(newline="", encoding="utf-8"))
    assert tuple(head) == LABELS
    return [dict(zip(LABELS, row, strict=True)) for row in rows]


def test_each_image_has_the_answer_of_the_student_the_least_sure_first(
    student, photos, tmp_path, monkeypatch
):
    monkeypatch.setattr(prediction, "_BATCH", 3)
    out, lines = tmp_path / "labels.csv", []
    label(student, photos, out, say=lines.append)
    asked = StudentAtWork(Path(student))(photos)
    answers = {os.path.relpath(answer.image, photos): answer for answer in asked}
    rows = table(out)
    files = {f"more/{k}.png" for k in range(7)}
    assert {row["file"] for row in rows} == set(answers) == files
    for row in rows:
        answer = answers[row["file"]]
        assert (row["class"], row["second"]) == answer.classes[:2]
        assert float(row["confidence"]) == pytest.approx(answer.probabilities[0], abs=1e-4)
        margin = answer.probabilities[0] - answer.probabilities[1]
        assert float(row["margin"]) == pytest.approx(margin, abs=1e-4)
    margins = [float(row["margin"]) for row in rows]
    assert margins == sorted(margins)
    assert lines == ["7 images labelled; 0 cannot be read"]


def test_what_cannot_be_read_is_a_row_that_says_why(student, photos, tmp_path):
    (photos / "broken.jpg").write_bytes(b"\xff\xd8nothing")
    (photos / "empty.png").touch()
    out, lines = tmp_path / "labels.csv", []
    label(student, photos, out, say=lines.append)
    first, second, *others = table(out)
    assert [first["file"], second["file"]] == ["broken.jpg", "empty.png"]
    assert "is not an image" in first["unreadable"]
    assert first["class"] == first["margin"] == ""
    assert not any(row["unreadable"] for row in others)
    assert lines == ["9 images labelled; 2 cannot be read"]


def test_a_zip_is_read_in_place_and_rows_may_be_in_the_order_of_names(
    student, photos, tmp_path
):
    archive, out, of_folder = (
        tmp_path / n for n in ("photos.zip", "zip.csv", "folder.csv")
    )
    with zipfile.ZipFile(archive, "w") as file:
        for path in sorted(photos.rglob("*.png"), reverse=True):
            file.write(path, path.relative_to(photos))
    label(student, archive, out, by_name=True)
    label(student, photos, of_folder, by_name=True)
    assert out.read_text() == of_folder.read_text()
    assert [row["file"] for row in table(out)] == [f"more/{k}.png" for k in range(7)]


@pytest.mark.parametrize(
    ("name", "cell"),
    [
        ("=cmd|' calc'!A1.png", "'=cmd|' calc'!A1.png"),
        ("+1.png", "'+1.png"),
        ("-1.png", "'-1.png"),
        ("@x.png", "'@x.png"),
        ("\t=1.png", "'\t=1.png"),
        ("\r=1.png", "\\r=1.png"),
        ("\x1b[2J.png", "\\x1b[2J.png"),
        ('a,"b"\n.png', 'a,"b"\n.png'),
        ("a=1.png", "a=1.png"),
        (os.fsdecode(b"\xff.png"), "\\udcff.png"),
    ],
)
def test_no_cell_is_a_formula_and_none_ends_the_table(student, tmp_path, name, cell):
    folder, out = tmp_path / "photos", tmp_path / "labels.csv"
    folder.mkdir()
    Image.new("L", (8, 8)).save(folder / "one.png")
    (folder / "one.png").rename(folder / name)
    label(student, folder, out)
    assert [row["file"] for row in table(out)] == [cell]


def test_names_of_classes_are_as_harmless(digits, photos, tmp_path):
    path, out, spec = tmp_path / "s.safetensors", tmp_path / "labels.csv", PatchNet(patch=4)
    data = replace(digits[0], classes=tuple(f"=HYPERLINK({k})" for k in range(10)))
    export(spec.build(10, 1), spec, path, data)
    label(str(path), photos, out)
    cells = {row[name][:12] for row in table(out) for name in ("class", "second")}
    assert cells == {"'=HYPERLINK("}


def test_a_file_that_is_there_stays_unless_it_is_forced(student, photos, tmp_path):
    out = tmp_path / "labels.csv"
    out.write_text("mine")
    with pytest.raises(BadInput, match=r"labels\.csv exists already; --force"):
        label(student, photos, out)
    assert out.read_text() == "mine"
    label(student, photos, out, force=True)
    assert len(table(out)) == 7
    with pytest.raises(BadInput, match="photos exists already"):
        label(student, photos, photos, force=True)


def test_who_is_interrupted_leaves_no_half_table(student, photos, tmp_path, monkeypatch):
    def interrupted(model, shown):
        raise KeyboardInterrupt

    monkeypatch.setattr(prediction, "probabilities", interrupted)
    before = sorted(tmp_path.iterdir())
    with pytest.raises(KeyboardInterrupt):
        label(student, photos, tmp_path / "labels.csv")
    assert sorted(tmp_path.iterdir()) == before


def test_what_cannot_be_written_is_said_before_the_work(
    student, photos, tmp_path, monkeypatch
):
    monkeypatch.setattr(prediction, "walk", lambda *_, **__: pytest.fail("it began"))
    with pytest.raises(
        BadInput, match=r"The table cannot be written to .*student\.safetensors"
    ):
        label(student, photos, f"{student}/labels.csv")


def test_without_a_file_the_table_goes_to_standard_output(student, photos, capsys):
    lines = []
    label(student, photos, None, say=lines.append)
    head, *rows = csv.reader(io.StringIO(capsys.readouterr().out))
    assert (tuple(head), len(rows), len(lines)) == (LABELS, 7, 1)


def test_it_says_where_it_stands(student, photos, tmp_path, monkeypatch):
    monkeypatch.setattr(prediction, "_BATCH", 3)
    monkeypatch.setattr(prediction, "_SAY_S", 0.0)
    lines = []
    label(student, photos, tmp_path / "labels.csv", say=lines.append)
    assert [line.partition(" after")[0] for line in lines] == [
        *(f"{done} of 7 images" for done in (3, 6, 7)),
        "7 images labelled; 0 cannot be read",
    ]


def test_a_place_without_images_is_said(student, tmp_path):
    (tmp_path / "none").mkdir()
    with pytest.raises(DataError, match="none holds no images"):
        label(student, tmp_path / "none", None)
    with pytest.raises(DataError, match="nowhere does not exist"):
        label(student, tmp_path / "nowhere", None)


@pytest.mark.parametrize("count", [0, -1, 1.5, "3", None])
def test_what_is_no_count_is_refused(student, photos, count):
    for call in (StudentAtWork(Path(student)), partial(answers, student)):
        with pytest.raises(
            BadInput, match=r"classes were asked for; ask for a whole number"
        ):
            call(photos, count)
    with pytest.raises(BadInput, match=r"images were asked for; ask for a whole number"):
        prediction.test_images(None, count)


@pytest.mark.parametrize("choice", [{"member": "none/seed0"}, {"best": True}])
@pytest.mark.parametrize("place", [".", "student.safetensors"])
def test_an_export_has_no_students_to_choose_from(student, photos, place, choice):
    export = str(Path(student).parent / place)
    assert len(answers(export, photos)) == 7
    with pytest.raises(BadInput, match="is the export of one student: omit member"):
        answers(export, photos, **choice)


def test_users_who_do_not_exist_and_names_too_long_are_no_traceback(student, photos):
    answer = partial(answers, student)
    for call in (StudentAtWork(Path(student)), answer, partial(label, student, out=None)):
        with pytest.raises(BadInput, match=r"~nobodyxyz/x"):
            call("~nobodyxyz/x")
    for call in (answers, label):
        with pytest.raises(BadInput, match="~nobodyxyz/x is no path: there is no user"):
            call("~nobodyxyz/x", str(photos), *[None] * (call is label))
    for call in (answer, partial(answers, images=photos), partial(label, student, photos)):
        with pytest.raises(BadInput, match="is no path"):
            call("x" * 300)
