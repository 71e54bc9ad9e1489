"""A student in eight bits, as a folder that timm loads, and behind MLflow's own server."""

import base64
import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import timm
import torch
from onnx import numpy_helper
from PIL import Image
from tests_support import free_port, student_card, until

from kdlab.config.check import construct
from kdlab.config.load import compose_card
from kdlab.data.images import DataSpec
from kdlab.errors import BadInput
from kdlab.events.event import discard_event
from kdlab.models.model import export
from kdlab.models.patch_net import PatchNet
from kdlab.models.timm import TimmModel
from kdlab.run.outputs.prediction import StudentAtWork
from kdlab.run.outputs.quantised import quantise
from kdlab.run.outputs.timm_folder import write_timm_folder
from kdlab.train.teacher import TeacherSpec, prepare

FACTS = {
    "kdlab_version": "0", "run": "r", "member": "m", "dataset": "clothes", "licence": "cc0-1.0",
    "test_top1": 50.0, "test_images": 641, "teacher": None,
}  # fmt: skip


@pytest.mark.slow("a network of photos, quantised and asked about all test images twice")
def test_eight_bits_lose_next_to_nothing(kdlab_home, tmp_path):
    """The network is the teacher that comes with kdlab, trained on photos."""
    data = construct(DataSpec, compose_card("data/clothes")).load()
    prepared = prepare(
        construct(TeacherSpec, compose_card("teachers/clothes_resnet")), discard_event
    )
    model = prepared.build(len(data.classes), data.shape[0])
    path = tmp_path / "int8.onnx"
    quantised = quantise(model, data, path, student_card(input=data.shown.to_dict()))
    assert quantised.images == len(data.test)
    assert quantised.fp32.top1 > 75
    assert quantised.fp32.top1 - quantised.int8.top1 < 1.0
    assert quantised.int8.megabytes < 0.4 * quantised.fp32.megabytes
    assert "times as fast on one core" in str(quantised)
    session = onnxruntime.InferenceSession(path)
    (scores,) = session.run(["scores"], {"pixels": data.inputs[data.test[:7]]})
    assert scores.shape == (7, 10)
    kinds = {node.type for node in session.get_inputs()}
    assert kinds == {"tensor(uint8)"}
    weights = [numpy_helper.to_array(t) for t in onnx.load(path).graph.initializer]
    # Two products of 255 and these fit into 16 bits: a processor without VNNI says the same.
    largest = [np.abs(w.astype(int)).max() for w in weights if w.dtype == np.int8]
    assert max(largest) == 64
    assert [p.name for p in tmp_path.iterdir()] == ["int8.onnx"]


@pytest.fixture
def digits_32():
    """Clothes, shown at 32 pixels in three channels."""
    return construct(DataSpec, compose_card("data/clothes")).load()


def test_timm_loads_the_folder_with_classes_and_how_images_are_shown(tmp_path, digits_32):
    torch.manual_seed(0)
    spec = TimmModel(variant="resnet10t", drop_path_rate=0.1)
    model = spec.build(10, 3).eval()
    student = tmp_path / "student.safetensors"
    export(model, spec, student, digits_32)
    facts = FACTS | {
        "licence": "apache-2.0",
        "teacher": "resnet18, 81.00 % of the same images",
    }
    folder = write_timm_folder(student, tmp_path / "mine", facts)
    assert {p.name for p in folder.iterdir()} == {
        "model.safetensors", "model.json", "config.json", "README.md",
    }  # fmt: skip
    again = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
    views = torch.randint(0, 256, (3, 3, 32, 32), dtype=torch.uint8)
    shown = timm.data.resolve_data_config({}, model=again)
    mean = torch.tensor(shown["mean"]).view(1, 3, 1, 1)
    std = torch.tensor(shown["std"]).view(1, 3, 1, 1)
    with torch.inference_mode():
        assert torch.allclose(again((views / 255 - mean) / std), model(views), atol=1e-5)
    assert shown["input_size"] == (3, 32, 32)
    assert shown["crop_pct"] == digits_32.shown.crop_pct
    hub_config = json.loads((folder / "config.json").read_text())
    assert hub_config["label_names"] == list(digits_32.classes)
    card = (folder / "README.md").read_text()
    assert "license: apache-2.0" in card
    assert "| test top-1 | 50.00 % of 641 images |" in card
    assert "resnet18, 81.00 % of the same images" in card
    assert "knowledge-distillation" in card
    assert str(tmp_path) not in "".join(p.read_text() for p in folder.glob("*.[jm][sd]*"))
    config = hub_config["pretrained_cfg"]
    assert (config["license"], config["crop_mode"]) == ("apache-2.0", "center")
    assert shown["crop_mode"] == "center"
    assert timm.data.resolve_data_config({}, model=again, use_test_size=True)[
        "input_size"
    ] == (3, 32, 32)
    assert "num_classes" not in hub_config["model_args"]  # transformers gives it itself
    # kdlab takes it as it takes the run: the same pixels and the same answers.
    images = list(np.moveaxis(digits_32.inputs[digits_32.test[:5]], 1, -1))
    by_run, by_folder = StudentAtWork(student)(images), StudentAtWork(folder)(images)
    assert by_folder.to_json() == by_run.to_json()


def test_a_card_says_what_is_not_known(tmp_path, digits_32):
    spec = TimmModel(variant="resnet10t")
    student = tmp_path / "student.safetensors"
    export(spec.build(10, 3), spec, student, digits_32)
    facts = FACTS | {"licence": "unknown"}
    card = (write_timm_folder(student, tmp_path / "mine", facts) / "README.md").read_text()
    assert "| licence of the weights | unknown: say it with --licence |" in card
    assert "| teacher | trained without a teacher |" in card
    assert "distilled" not in card
    assert "knowledge-distillation" not in card


def test_a_network_of_somebody_else_has_no_such_folder(tmp_path, digits_32):
    spec = PatchNet(patch=4, width=8)
    student = tmp_path / "student.safetensors"
    export(spec.build(10, 3).eval(), spec, student, digits_32)
    with pytest.raises(BadInput, match="timm loads only its own networks"):
        write_timm_folder(student, tmp_path / "mine", FACTS)


@pytest.mark.slow("MLflow's own server imports for seconds, twice")
def test_mlflow_serves_the_student_to_whoever_posts_an_image(taught, elsewhere):
    """`mlflow models serve`, a real server; curl posts a file of an image."""
    run = taught
    state = json.loads((run.path / "tracking.json").read_text())
    model = state["models"][state["runs"]["in_process/seed0"]]
    port = free_port()
    images = run.test_images(2)
    rows = []
    for image in images:
        written = io.BytesIO()
        Image.fromarray(np.squeeze(image)).save(written, "PNG")
        rows.append([base64.b64encode(written.getvalue()).decode()])
    asked = elsewhere / "asked.json"
    asked.write_text(json.dumps({"dataframe_split": {"columns": ["image"], "data": rows}}))
    log = elsewhere / "server.log"
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"  # of uvicorn
    environment = {**os.environ, "MLFLOW_TRACKING_URI": state["uri"], "PATH": path}
    server = subprocess.Popen(
        [sys.executable, "-m", "mlflow", "models", "serve", "--env-manager", "local",
         "-m", f"models:/{model}", "--port", str(port), "--host", "127.0.0.1"],
        env=environment, stdout=subprocess.DEVNULL, stderr=log.open("wb"),
        start_new_session=True,
    )  # fmt: skip
    try:
        until(lambda: server.poll() is not None or answers(port), seconds=120.0)
        assert server.poll() is None, log.read_text()
        reply = subprocess.run(
            ["curl", "-s", "-H", "Content-Type: application/json", "-d", f"@{asked}",
             f"http://127.0.0.1:{port}/invocations"],
            capture_output=True, text=True, check=True,
        ).stdout  # fmt: skip
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        server.wait(30)
    predictions = json.loads(reply)["predictions"]
    expected = run.predict(images, top=10, member="in_process/seed0")
    assert [one["class"] for one in predictions] == [one.top for one in expected]
    assert [one["probability"] for one in predictions] == pytest.approx(
        [one.probabilities[0] for one in expected]
    )


def answers(port):
    with contextlib.suppress(urllib.error.URLError, OSError):
        return (
            urllib.request.urlopen(f"http://127.0.0.1:{port}/ping", timeout=2).status == 200
        )
    return False
