"""Networks from folders, from a hub (a real server with the hub's protocol), and from MLflow."""

import json
import subprocess
import sys

import mlflow
import pytest
import torch
from http_site import Site
from mlflow import MlflowClient

from kdlab.config.check import construct
from kdlab.config.load import compose_card
from kdlab.data.images import DataSpec
from kdlab.errors import BadInput, SpecError, WeightsError
from kdlab.events.event import discard_event
from kdlab.models.cifar_resnet import CifarResNet
from kdlab.models.exported import load_exported
from kdlab.models.model import export
from kdlab.models.saved import SavedModel
from kdlab.models.shrunk import ShrunkModel
from kdlab.models.timm import TimmModel
from kdlab.run.outputs.prediction import StudentAtWork
from kdlab.run.outputs.timm_folder import write_timm_folder
from kdlab.tracking.logged_model import log_student
from kdlab.train.teacher import PreparedTeachers, TeacherSpec, prepare

OWN = CifarResNet(depth=8, width=(4, 4, 8, 8), mean=(0.4,), std=(0.2,))
OF_TIMM = TimmModel(variant="resnet10t")
FACTS = {
    "kdlab_version": "0", "run": "r", "member": "m", "dataset": "clothes", "licence": "cc0-1.0",
    "test_top1": 50.0, "test_images": 641, "teacher": None,
}  # fmt: skip


@pytest.fixture(scope="module")
def clothes():
    return construct(DataSpec, compose_card("data/clothes")).load()


def exported(spec, folder, data):
    folder.mkdir(parents=True)
    torch.manual_seed(3)
    model = spec.build(10, 3).eval()
    export(model, spec, folder / "student.safetensors", data)
    return model


def assert_alike(spec, model, data):
    """Assert that a teacher built as a run and a pool's machine do answers like the model."""
    teacher = prepare(TeacherSpec(model=spec), discard_event)
    views = torch.from_numpy(data.inputs[data.test[:4]])
    with torch.inference_mode():
        expected = model(views)
        built = PreparedTeachers((teacher,)).build(10, 3)
        assert torch.equal(built(views), expected)
        # A machine without the files: it has the network's own description, and the weights.
        plain = spec.without_weights()
        assert not isinstance(plain, SavedModel)
        assert "place" not in plain.to_dict()
        assert torch.equal(spec.build(10, 3).eval()(views), expected)


def test_an_export_of_kdlab_is_a_teacher_as_it_is(tmp_path, clothes):
    model = exported(OWN, tmp_path / "mine", clothes)
    assert_alike(SavedModel(place=str(tmp_path / "mine")), model, clothes)


def test_what_was_begun_from_it_is_exported_as_the_network_itself(tmp_path, clothes):
    exported(OWN, tmp_path / "mine", clothes)
    spec = SavedModel(place=str(tmp_path / "mine"))
    export(spec.build(10, 3), spec, tmp_path / "again.safetensors", clothes)
    (tmp_path / "mine" / "student.safetensors").unlink()
    assert load_exported(tmp_path / "again.safetensors").num_classes == 10


def test_a_folder_of_timm_is_a_teacher_as_it_is(tmp_path, clothes):
    model = exported(OF_TIMM, tmp_path / "own", clothes)
    folder = write_timm_folder(
        tmp_path / "own" / "student.safetensors", tmp_path / "timms", FACTS
    )
    spec = SavedModel(place=str(folder))
    assert_alike(spec, model, clothes)
    shown = {"crop_pct": 1.0, "interpolation": "bilinear", "crop_mode": "center"}
    assert spec.evaluation(32) == shown


def test_a_folder_with_other_files_is_left_alone(tmp_path, clothes):
    exported(OF_TIMM, tmp_path / "own", clothes)
    student, mine = tmp_path / "own" / "student.safetensors", tmp_path / "mine"
    mine.mkdir()
    (mine / "README.md").write_text("MINE")
    with pytest.raises(BadInput, match="holds other files"):
        write_timm_folder(student, mine, FACTS)
    assert [path.name for path in mine.iterdir()] == ["README.md"]
    (mine / "README.md").unlink()
    for _ in range(2):  # once more into its own folder
        write_timm_folder(student, mine, FACTS)


def test_a_student_of_fewer_pixels_is_the_network_alone_there(tmp_path, clothes):
    """timm scales photos to the network's size; of the same pixels it says the same."""
    model = exported(ShrunkModel(model=OF_TIMM, size=16), tmp_path / "own", clothes)
    folder = write_timm_folder(
        tmp_path / "own" / "student.safetensors", tmp_path / "timms", FACTS
    )
    config = json.loads((folder / "config.json").read_text())
    assert config["pretrained_cfg"]["input_size"] == [3, 16, 16]
    views = torch.from_numpy(clothes.inputs[clothes.test[:4]])
    means = views.unflatten(3, (16, 2)).unflatten(2, (16, 2)).float().mean((3, 5)).round()
    again = SavedModel(place=str(folder)).build(10, 3).eval()
    with torch.inference_mode():
        assert torch.allclose(again(means.to(torch.uint8)), model(views), atol=0.05)
    assert StudentAtWork(folder).input.size == 16


def test_arguments_of_timm_stand_in_its_folder(tmp_path, clothes):
    spec = TimmModel(variant="vit_tiny_patch16_224", options={"img_size": 32, "depth": 2})
    model = exported(spec, tmp_path / "own", clothes)
    folder = write_timm_folder(
        tmp_path / "own" / "student.safetensors", tmp_path / "timms", FACTS
    )
    assert_alike(SavedModel(place=str(folder)), model, clothes)


def test_arguments_that_timm_does_not_know_are_refused(tmp_path, clothes):
    exported(OF_TIMM, tmp_path / "own", clothes)
    folder = write_timm_folder(
        tmp_path / "own" / "student.safetensors", tmp_path / "timms", FACTS
    )
    config = json.loads((folder / "config.json").read_text())
    config["model_args"] = {"in_chans": 3, "img_size": 96}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(WeightsError, match="img_size: is no argument of timm's resnet10t"):
        SavedModel(place=str(folder)).build(10, 3)


def test_an_export_shows_images_as_its_student_was_shown_them(tmp_path, clothes):
    exported(OWN, tmp_path / "mine", clothes)
    shown = SavedModel(place=str(tmp_path / "mine")).evaluation(96)
    assert shown == {key: clothes.shown.to_dict()[key] for key in shown}
    assert "crop_mode" in shown


def test_a_place_without_a_network_is_said(tmp_path):
    with pytest.raises(WeightsError, match=r"no saved network at .*neither student"):
        SavedModel(place=str(tmp_path)).build(10, 3)


def test_a_version_that_moves_is_refused():
    with pytest.raises(SpecError, match="may be another model tomorrow"):
        SavedModel(place="models:/clothes@champion")
    assert SavedModel(place="models:/clothes/3")
    with pytest.raises(SpecError, match="name the revision"):
        SavedModel(place="hf-hub:timm/resnet10t")
    assert SavedModel(place="hf-hub:timm/resnet10t@main")


def test_weights_of_another_export_are_not_taken(tmp_path, clothes):
    exported(OWN, tmp_path / "mine", clothes)
    card = json.loads((tmp_path / "mine" / "student.json").read_text())
    card["sha256"] = "0" * 64
    (tmp_path / "mine" / "student.json").write_text(json.dumps(card))
    with pytest.raises(WeightsError, match="mixes two exports"):
        SavedModel(place=str(tmp_path / "mine")).build(10, 3)


@pytest.mark.slow("MLflow makes a store of its own")
def test_a_model_of_mlflow_is_fetched_once(kdlab_home, tmp_path, clothes):
    model = exported(OWN, tmp_path / "mine", clothes)
    store = f"sqlite:///{tmp_path / 'mlflow.db'}"
    client = MlflowClient(tracking_uri=store)
    experiment = client.create_experiment("saved", artifact_location=str(tmp_path / "art"))
    run = client.create_run(experiment).info.run_id
    student = tmp_path / "mine" / "student.safetensors"
    number = log_student(client, run, experiment, student, 7, "student")
    spec = SavedModel(place=f"models:/{number}", store=store)
    assert_alike(spec, model, clothes)
    (tmp_path / "mlflow.db").unlink()  # from now on it is here
    assert_alike(SavedModel(place=f"models:/{number}", store=store), model, clothes)
    empty_store = f"sqlite:///{tmp_path / 'other.db'}"
    with pytest.raises(
        WeightsError, match=f"models:/{number} could not be downloaded from MLflow"
    ):
        _ = SavedModel(place=f"models:/{number}", store=empty_store).folder
    mlflow.set_tracking_uri(None)


FETCH = """
import sys
from kdlab.models.saved import SavedModel
print(SavedModel(place=sys.argv[1]).folder)
"""


@pytest.mark.slow("two Pythons with the hub's client")
def test_a_model_of_a_hub_is_fetched_once(kdlab_home, tmp_path, clothes, monkeypatch):
    """By the hub's own client from a server on this machine."""
    model = exported(OF_TIMM, tmp_path / "own", clothes)
    folder = write_timm_folder(
        tmp_path / "own" / "student.safetensors", tmp_path / "timms", FACTS
    )
    site = Site()
    site.headers = {"X-Repo-Commit": "0" * 40}
    for name in ("model.safetensors", "config.json"):
        site.files[f"/me/mine/resolve/main/{name}"] = (folder / name).read_bytes()
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{site.server.server_port}")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))

    def fetch(place):  # the client reads its address when it is imported
        return subprocess.run(
            [sys.executable, "-c", FETCH, place],
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )

    fetched = fetch("hf-hub:me/mine@main")
    assert fetched.returncode == 0, fetched.stderr
    asked = len(site.asked)
    assert_alike(SavedModel(place="hf-hub:me/mine@main"), model, clothes)
    assert len(site.asked) == asked
    missing = fetch("hf-hub:me/absent@main")
    assert "hf-hub:me/absent@main could not be downloaded" in missing.stderr
    assert "copy model.safetensors and config.json into a folder" in missing.stderr
    site.close()
