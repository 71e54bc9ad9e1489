import hashlib
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests_support import OfClasses

from kdlab.errors import ModelError, WeightsError
from kdlab.models.cifar_resnet import CifarResNet
from kdlab.models.cifar_vgg import CifarVgg
from kdlab.models.model import check_fit, export, load_weights, parameters, read_card
from kdlab.models.timm import TimmModel
from kdlab.models.torchvision import TorchvisionModel
from kdlab.models.wide_resnet import WideResNetSpec

X4 = (32, 64, 128, 256)
# Parameters with 100 classes, as the distillation literature's tables have them (in M).
PUBLISHED = [
    (CifarResNet(depth=20), 0.28),
    (CifarResNet(depth=32), 0.47),
    (CifarResNet(depth=56), 0.86),
    (CifarResNet(depth=110), 1.74),
    (CifarResNet(depth=8, width=X4), 1.23),
    (CifarResNet(depth=32, width=X4), 7.43),
    (WideResNetSpec(depth=16, widen=2), 0.70),
    (WideResNetSpec(depth=40, widen=2), 2.26),
    (CifarVgg(depth=8), 3.97),
    (CifarVgg(depth=13), 9.46),
]


@pytest.mark.parametrize(("spec", "millions"), PUBLISHED, ids=str)
@pytest.mark.long
def test_sizes_are_the_published_ones(spec, millions):
    model = spec.build(100, 3)
    assert parameters(model) / 1e6 == pytest.approx(millions, abs=0.006)
    check_fit(model, (3, 32, 32), 100, "it")


@pytest.mark.parametrize(
    ("spec", "shape"),
    [
        (TimmModel(variant="resnet10t"), (3, 32, 32)),
        (TimmModel(variant="resnet10t"), (1, 32, 32)),
        (TorchvisionModel(variant="mobilenet_v3_small"), (3, 32, 32)),
        (TorchvisionModel(variant="squeezenet1_1"), (1, 32, 32)),
        (TorchvisionModel(variant="googlenet"), (3, 64, 64)),
        (CifarResNet(depth=8), (1, 8, 8)),
    ],
    ids=str,
)
def test_takes_any_number_of_channels_and_classes(spec, shape):
    check_fit(spec.build(7, shape[0]), shape, 7, "it")


def test_each_model_keeps_its_own_normalisation():
    imagenet = TorchvisionModel(variant="resnet18").build(10, 3)
    assert (imagenet.mean.flatten() / 255).tolist() == pytest.approx([0.485, 0.456, 0.406])
    plain = CifarResNet(depth=8).build(10, 1)
    views = torch.tensor([[[[0, 255]]]], dtype=torch.uint8)
    seen = []
    plain.net = torch.nn.Sequential()
    seen.append(plain(views).flatten().tolist())
    assert seen == [[-1.0, 1.0]]
    custom = CifarResNet(depth=8, mean=(0.0,), std=(1.0,)).build(10, 3)
    assert custom.std.flatten().tolist() == [255.0] * 3


def test_an_image_too_small_is_said_before_a_run():
    with pytest.raises(ModelError, match="cannot take images of 3×4×4"):
        check_fit(CifarVgg(depth=8).build(10, 3), (3, 4, 4), 10, "the student")


def test_another_number_of_classes_is_said_with_the_numbers():
    with pytest.raises(ModelError, match=r"\(2, 7\).*10 classes"):
        check_fit(CifarResNet(depth=8).build(7, 3), (3, 8, 8), 10, "the teacher")


def test_weights_go_out_and_come_back(tmp_path):
    spec = CifarResNet(depth=8, width=(4, 4, 4, 4))
    model = spec.build(5, 3)
    path = tmp_path / "m.safetensors"
    export(model, spec, path, OfClasses(5), epoch=3)
    sha = hashlib.sha256(path.read_bytes()).hexdigest()
    card = read_card(path)
    assert (card["sha256"], card["num_classes"], card["in_chans"]) == (sha, 5, 3)
    again = CifarResNet(depth=8, width=(4, 4, 4, 4), weights=str(path), sha256=sha).build(
        5, 3
    )
    for name, value in model.state_dict().items():
        assert torch.equal(value, again.state_dict()[name])
    torch.save(load_file(path), tmp_path / "m.pt")
    load_weights(again.net, tmp_path / "m.pt")


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda p: p.unlink(), "no weights file"),
        (lambda p: p.write_bytes(b"junk"), "expected"),
        (lambda p: save_file({"x": torch.zeros(1)}, p), "expected"),
    ],
)
def test_foreign_or_damaged_weights_are_refused(tmp_path, spoil, words):
    spec = CifarResNet(depth=8)
    path = tmp_path / "m.safetensors"
    export(spec.build(5, 3), spec, path, OfClasses(5))
    sha = hashlib.sha256(path.read_bytes()).hexdigest()
    spoil(path)
    with pytest.raises(WeightsError, match=words):
        CifarResNet(depth=8, weights=str(path), sha256=sha).build(5, 3)


def test_weights_of_another_model_name_the_misfit(tmp_path):
    path = tmp_path / "m.safetensors"
    export(CifarResNet(depth=8).build(5, 3), CifarResNet(depth=8), path, OfClasses(5))
    with pytest.raises(
        WeightsError,
        match=r"2 of 56 tensors of another shape .*head.weight .*number of classes",
    ):
        CifarResNet(depth=8, weights=str(path)).build(6, 3)


def test_a_students_last_layer_may_be_of_other_classes_and_nothing_else(tmp_path):
    spec, path = CifarResNet(depth=8), tmp_path / "m.safetensors"
    export(old := spec.build(5, 3), spec, path, OfClasses(5))
    saved = replace(spec, weights=str(path))
    new = saved.build(6, 3, refit=True)
    assert new.anew == "; its last layer (head) begins afresh: 5 classes there, 6 here"
    state = new.net.state_dict()
    assert state["head.weight"].shape == (6, 64)
    assert all(
        torch.equal(v, state[k]) for k, v in old.net.state_dict().items() if k[:4] != "head"
    )
    assert saved.build(5, 3, refit=True).anew == ""
    for wider, words in (
        (saved.build, r"1 of 56 tensors of another shape \(stem.0.weight .*channels"),
        (replace(saved, depth=14).build, r"42 of 92 tensors missing \(.*name the network"),
        (replace(saved, width=(8, 8, 8, 8)).build, "of another shape .*name the network"),
    ):
        with pytest.raises(WeightsError, match=words):
            wider(5, 1 if "channels" in words else 3, refit=True)


def test_a_pickle_cannot_run_code(tmp_path):
    import pickle

    class Evil:
        def __reduce__(self):
            return (open, (str(tmp_path / "ran"), "w"))

    (tmp_path / "m.pt").write_bytes(pickle.dumps(Evil(), protocol=2))
    with pytest.raises(WeightsError, match="could run code"):
        load_weights(torch.nn.Linear(1, 1), tmp_path / "m.pt")
    assert not (tmp_path / "ran").exists()
