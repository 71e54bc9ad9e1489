"""The student as a file that runs without kdlab, checked on real images."""

import json
import re
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from PIL import Image

import kdlab
from kdlab.errors import BadInput, ModelError
from kdlab.experiment.folder import RunFolder
from kdlab.models.exported import load_exported
from kdlab.models.patch_net import PatchNet
from kdlab.run.outputs import export
from kdlab.run.outputs.export_formats import ship
from kdlab.run.outputs.prediction import answers

MEMBER = "in_process/seed0"
NAMED = ("--member", MEMBER)


@pytest.mark.processes
@pytest.mark.parametrize("to", ["safetensors", "torch", "pt2", "onnx"])
def test_what_is_exported_says_what_the_student_says(taught, tmp_path, kdlab_cli, to):
    target = tmp_path / f"own.{to}"
    named = NAMED if to == "pt2" else ()
    asked = (taught.id, *named, "--to", to, "--out", str(target))
    code, out, err = kdlab_cli("export", *asked)
    assert code == 0, err
    member, taken = out.splitlines()[0], f"taken: {out.splitlines()[0]}, "
    assert (taken in out) == (not named)  # which of two, and why
    assert re.search(r"teacher +[\d,]+ .*\nstudent +[\d,]+ .*\ntimes smaller", out)
    student = load_exported(taught.path / "members" / member / "student.safetensors")
    pixels = kdlab_images()
    with torch.inference_mode():
        expected = student(torch.from_numpy(pixels)).numpy()
    card = json.loads(target.with_suffix(".json").read_text())
    assert card["num_classes"] == expected.shape[1]
    if to == "pt2":
        assert "top-1 is the same on 100.0%" in out
        scores = torch.export.load(target).module()(torch.from_numpy(pixels))
        np.testing.assert_allclose(scores.detach().numpy(), expected, atol=1e-4)
    elif to == "onnx":
        onnxruntime = pytest.importorskip("onnxruntime")
        (scores,) = onnxruntime.InferenceSession(target).run(None, {"pixels": pixels})
        np.testing.assert_allclose(scores, expected, atol=1e-4)


def kdlab_images():
    """Return an odd number of images, for no batch size may be built in."""
    data = kdlab.load("smoke/in_process").spec.data.load()
    return data.inputs[data.test[:37]]


@pytest.mark.long
def test_what_says_something_else_is_refused(tmp_path, monkeypatch):
    model = PatchNet(patch=4, depth=1, width=8).build(5, 3).eval()
    images = np.random.default_rng(0).integers(0, 256, (6, 3, 8, 8), np.uint8)
    second_model = PatchNet(patch=4, depth=1, width=8).build(5, 3).eval()
    any_batch = ({0: torch.export.Dim("batch")},)
    views = torch.from_numpy(images)
    wrong = torch.export.export(second_model, (views,), dynamic_shapes=any_batch)
    honest = torch.export.save

    def another(program, path):
        honest(wrong, path)

    monkeypatch.setattr(torch.export, "save", another)
    with pytest.raises(ModelError, match="disagrees with the student"):
        ship(model, images, "pt2", tmp_path / "bad.pt2")


@pytest.mark.processes
@pytest.mark.parametrize(
    "out", ["/proc/student.safetensors", ".", "a-file/student.safetensors"]
)
def test_a_place_that_cannot_be_written_is_named(taught, tmp_path, kdlab_cli, out):
    """This once ended in a traceback."""
    place = tmp_path / out
    (tmp_path / "a-file").touch()
    code, printed, err = kdlab_cli("export", taught.id, "--out", str(place))
    assert (code, printed) == (2, "")
    assert "cannot be written to" in err
    assert str(place) in err


@pytest.mark.parametrize(
    ("to", "out", "why"),
    [
        ("torch", "outdir", "outdir, which is a folder"),
        ("pt2", "outdir", "outdir, which is a folder"),
        ("onnx", "/", "to /, which is a folder"),
        ("timm", "/", "to /, which is a folder"),
        ("torch", "m.safetensors", "--to torch writes no m.safetensors"),
        ("torch", "m.json", "The card goes to"),
    ],
)
def test_a_name_that_does_not_fit_is_refused(tmp_path, monkeypatch, to, out, why):
    student = tmp_path / "run" / "members" / "none" / "student.safetensors"
    monkeypatch.setattr(export.folders, "find", lambda name: RunFolder(tmp_path / "run"))
    monkeypatch.setattr(export, "student_file", lambda *_, **more: (student, ""))
    monkeypatch.setattr(export, "export_facts", lambda *_: {})
    monkeypatch.chdir(tmp_path)
    (tmp_path / "outdir").mkdir()
    with pytest.raises(BadInput, match=why):
        export.export_student("last", to=to, out=out, member=None, best=False)
    with pytest.raises(BadInput, match="which is a folder: give --out the name of a new"):
        export._target("/", folder=True)
    assert [path.name for path in tmp_path.iterdir()] == ["outdir"]
    monkeypatch.setenv("HOME", str(tmp_path))
    assert export._target("~/x.pt") == tmp_path / "x.pt"


@pytest.mark.processes
def test_exports_are_made_to_be_handed_on(taught, tmp_path, kdlab_cli):
    """pt2 gets the suffix that torch wants; files are readable; nobody's paths are inside."""
    code, out, err = kdlab_cli("export", taught.id, *NAMED, "--to", "pt2", "--out", "own")
    assert code == 0, err
    (written,) = [line for line in out.splitlines() if line.endswith("own.pt2")]
    assert Path(written).stat().st_mode & 0o777 == 0o644
    target = tmp_path / "own.onnx"
    assert (
        kdlab_cli("export", taught.id, *NAMED, "--to", "onnx", "--out", str(target))[0] == 0
    )
    props = {p.key: p.value for p in onnx.load(target).metadata_props}
    assert json.loads(props["run"]) == taught.id
    assert json.loads(props["licence"]) == "unknown"
    assert json.loads(props["test_images"]) > 0
    assert "%" in json.loads(props["teacher"])
    assert str(taught.path.parent) not in str(props)
    images = taught.test_images(3)
    by_run, by_file = taught.predict(images, member=MEMBER), answers(str(target), images)
    assert [answer.classes for answer in by_file] == [answer.classes for answer in by_run]


@pytest.mark.processes
def test_photos_are_labelled_by_the_student_that_predicts(taught, tmp_path, capsys):
    folder, out = tmp_path / "photos", tmp_path / "labels.csv"
    folder.mkdir()
    for k, image in enumerate(taught.test_images(3)):
        Image.fromarray(image.squeeze()).save(folder / f"{k}.png")
    taught.label(folder, out, by_name=True)
    assert "taken: " in capsys.readouterr().out
    labels = [line.split(",")[1] for line in out.read_text().splitlines()[1:]]
    assert labels == [answer.top for answer in taught.predict(folder)]
