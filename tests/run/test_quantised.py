"""Students in eight bits and exports: their summary, measurement and loading."""

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import yaml
from tests_support import student_card

from kdlab.errors import NotFoundError
from kdlab.run.outputs import export, quantised
from kdlab.run.outputs.quantised import FormMeasurement, Quantised


def in_bits(top1, batch_ms):
    return FormMeasurement(megabytes=0.5, top1=top1, alone_ms=2.0, batch_ms=batch_ms)


def test_what_is_lost_and_won_is_said():
    text = str(Quantised(fp32=in_bits(91.5, 3.0), int8=in_bits(91.25, 1.5), images=1200))
    assert text.endswith(
        "int8 is 2.0 times as fast on one core and +0.25 points below fp32 on 1,200 test images"
    )
    assert [line.split()[:3] for line in text.split("\n")[1:3]] == [
        ["fp32", "0.50", "91.50"],
        ["int8", "0.50", "91.25"],
    ]


def test_a_large_loss_has_its_advice():
    text = str(Quantised(fp32=in_bits(91.5, 3.0), int8=in_bits(90.0, 1.5), images=9))
    assert "That is much" in text
    assert "train.quantise_after" in text


def test_ranges_come_from_images_of_all_classes_in_batches():
    class Reader:
        """onnxruntime's CalibrationDataReader."""

    images = np.arange(70, dtype=np.uint8).reshape(70, 1, 1, 1)
    reader = quantised._reader(Reader, images)
    assert isinstance(reader, Reader)
    batches = []
    while (batch := reader.get_next()) is not None:
        batches.append(batch["pixels"])
    assert sorted(map(len, batches)) == [6, 32, 32]
    assert sorted(np.concatenate(batches).ravel()) == list(range(70))


def test_some_images_have_each_class_in_its_share():
    labels = np.repeat([0, 1], [80, 20])
    data = SimpleNamespace(labels=labels)
    some = quantised._some(data, np.arange(100), 10)
    assert np.bincount(labels[some]).tolist() == [8, 2]
    assert len(quantised._some(data, np.arange(100), 500)) == 100


def test_forms_take_turns_and_each_has_its_accuracy(tmp_path, monkeypatch):
    asked = []

    def session(path):
        right = path.stem == "fp32"

        def run(pixels):
            asked.append((path.stem, len(pixels)))
            classes = pixels[:, 0, 0, 0] % 2
            return np.eye(2, dtype=np.float32)[classes if right else 0 * classes]

        return run

    monkeypatch.setattr(quantised, "onnx_session", session)
    monkeypatch.setattr(quantised, "_TURNS", 2)
    ticks = iter(range(1000))
    monkeypatch.setattr(quantised.time, "thread_time", lambda: float(next(ticks)))
    paths = {name: tmp_path / f"{name}.onnx" for name in ("fp32", "int8")}
    for path, size in zip(paths.values(), (4000, 1000), strict=True):
        path.write_bytes(bytes(size))
    images = np.arange(40, dtype=np.uint8).reshape(40, 1, 1, 1)
    forms = quantised._measured(paths, images, np.arange(40) % 2)
    turn = [("fp32", 1), ("fp32", 32), ("int8", 1), ("int8", 32)]
    assert asked[:8] == turn * 2
    assert (forms["fp32"].top1, forms["int8"].top1) == (100.0, 50.0)
    assert (forms["fp32"].megabytes, forms["int8"].megabytes) == (0.004, 0.001)
    assert forms["int8"].alone_ms == 1000.0  # a tick of the clock
    assert forms["int8"].batch_ms == 1000.0 / 32


CARD = {"num_classes": 7, "in_chans": 3}


@pytest.mark.parametrize(
    ("model", "file", "lines"),
    [
        ({"type": "timm/resnet18"}, "s.safetensors",
         ["import timm", "from safetensors.torch import load_file", "",
          "model = timm.create_model('resnet18', num_classes=7, in_chans=3)",
          "model.load_state_dict(load_file('s.safetensors'))"]),
        ({"type": "torchvision/resnet18"}, "s.pt",
         ["import torchvision", "import torch", "",
          "model = torchvision.models.get_model('resnet18', num_classes=7)",
          "model.load_state_dict(torch.load('s.pt', weights_only=True))"]),
        ({"type": "models/chosen_blocks", "teacher": {"type": "timm/resnet18"}}, "s.safetensors",
         ["from kdlab.models.exported import load_exported", "",
          "model = load_exported('s.safetensors')"]),
    ],
)  # fmt: skip
def test_lines_that_load_a_file_are_whole(model, file, lines):
    text = export._how(CARD | {"model": model}, Path(file))
    assert [line.strip() for line in text.split("\n")] == lines


def test_lines_that_load_a_network_of_kdlab_do_so(tmp_path):
    import torch
    from safetensors.torch import save_file

    from kdlab.models.patch_net import PatchNet

    spec = PatchNet(patch=4, depth=1, width=8)
    weights = spec.architecture(7, 3).state_dict()
    save_file(weights, tmp_path / "s.safetensors")
    card = CARD | {"model": {"type": "models/patch_net", **spec.to_dict()}}
    lines = export._how(card, tmp_path / "s.safetensors")
    namespace = {}
    exec(
        "\n".join(line.strip() for line in lines.split("\n")), namespace
    )  # as somebody pastes it
    for name, tensor in namespace["model"].state_dict().items():
        assert torch.equal(tensor, weights[name])


@pytest.fixture
def member(tmp_path, monkeypatch):
    """The folder of a training of a run."""
    folder = tmp_path / "r1" / "members" / "ec" / "seed0"
    folder.mkdir(parents=True)
    run = SimpleNamespace(path=tmp_path / "r1", run_id="r1")
    monkeypatch.setattr(export.folders, "find", lambda name: run)
    monkeypatch.setattr(export, "member_folder", lambda run, member: folder)
    monkeypatch.chdir(tmp_path)
    return folder


def test_averaged_weights_are_a_file_with_its_card(member, tmp_path):
    (member / "global.safetensors").write_bytes(b"weights")
    card = student_card(model={"type": "timm/resnet18"})
    (member / "global.json").write_text(json.dumps(card))
    text = export.export_global("r1", out="sub/mine", member=None)
    target = tmp_path / "sub" / "mine.safetensors"
    assert text.split("\n")[:2] == ["ec/seed0", str(target)]
    assert target.read_bytes() == b"weights"
    assert json.loads(target.with_suffix(".json").read_text()) == card


def test_an_ensemble_is_a_folder_that_can_be_moved(member, tmp_path):
    (member / "ensemble").mkdir()
    networks = [member / "ensemble" / f"{k}.safetensors" for k in (0, 1)]
    for path in networks:
        path.write_text(path.name)
    teachers = [{"model": {"type": "x", "weights": str(path)}} for path in networks]
    (member / "ensemble.yaml").write_text(yaml.safe_dump({"teacher": teachers}))
    text = export.export_global("r1", out=None, member=None)
    assert text.split("\n")[1] == f"{tmp_path / 'ensemble'} (2 networks)"
    card = yaml.safe_load((tmp_path / "ensemble" / "ensemble.yaml").read_text())
    for number, teacher in enumerate(card["teacher"]):
        weights = Path(teacher["model"]["weights"])
        assert weights.parent == tmp_path / "ensemble"
        assert weights.read_text() == f"{number}.safetensors"


def test_a_run_of_one_student_has_no_global_model(member):
    with pytest.raises(NotFoundError, match="ec/seed0 of run r1 has no global model"):
        export.export_global("r1", out=None, member=None)
