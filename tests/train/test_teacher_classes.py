"""A teacher whose classes are in another order, or more than the data's, teaches the same."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

import kdlab
from kdlab.config.check import construct
from kdlab.config.load import from_dict
from kdlab.errors import ModelError
from kdlab.events.event import discard_event
from kdlab.models.cifar_resnet import CifarResNet
from kdlab.train.teacher import PreparedTeachers, TeacherSpec, prepare
from kdlab.train.teacher_classes import named
from kdlab.train.teacher_fit import check

CARD = {"type": "models/cifar_resnet", "depth": 14, "width": [16, 32, 64, 96]}
MEAN = {"mean": [0.5, 0.5, 0.5], "std": [0.5, 0.5, 0.5]}


@pytest.fixture(scope="module")
def data():
    few = ("data.train_samples=40", "data.test_samples=20")
    return kdlab.load("clothes/quickstart", *few).spec.data.load()


def state(classes):
    torch.manual_seed(0)
    return (
        CifarResNet(depth=14, width=(16, 32, 64, 96)).architecture(classes, 3).state_dict()
    )


def with_head(plain, rows):
    """A network that says of its output k what the plain one says of rows[k]."""
    tensors = dict(plain)
    for name in ("head.weight", "head.bias"):
        tensors[name] = plain[name][rows].contiguous()
    return tensors


def teacher(path, tensors, **fields):
    save_file(tensors, path)
    model = CARD | MEAN | {"weights": str(path)}
    return construct(
        TeacherSpec, from_dict({"type": "train/teacher", "model": model, **fields}, "t")
    )


def answers(spec, data):
    check(spec, data)
    prepared = prepare(spec, discard_event, data=data)
    teachers = PreparedTeachers((prepared,))
    views = torch.from_numpy(data.inputs[data.test[:4]])
    return teachers.load(data, "cpu").infer(views), prepared


ORDER = [3, 1, 4, 0, 5, 9, 2, 6, 8, 7]


@pytest.fixture
def plain(tmp_path, data):
    tensors = state(10)
    return tensors, answers(teacher(tmp_path / "plain.safetensors", tensors), data)[0]


@pytest.mark.parametrize("form", ["list", "file", "mapping"])
def test_classes_in_another_order_give_the_same_answers(
    kdlab_home, tmp_path, data, plain, form
):
    tensors, right = plain
    names = [data.classes[k] for k in ORDER]
    classes = {
        "list": names,
        "file": str(tmp_path / "names.txt"),
        "mapping": dict(zip(data.classes, names, strict=True)),
    }[form]
    (tmp_path / "names.txt").write_text("\n".join(names) + "\n")
    spec = teacher(tmp_path / "w.safetensors", with_head(tensors, ORDER), classes=classes)
    logits, fixed = answers(spec, data)
    assert torch.equal(logits, right)
    assert fixed.sha256 != prepare(spec, discard_event).sha256
    again = answers(spec, data)[1]
    assert again.weights == fixed.weights
    del kdlab_home


def test_more_classes_than_the_data_are_cut_off(kdlab_home, tmp_path, data, plain):
    tensors, right = plain
    wide = with_head(tensors, [0, *ORDER, 5])
    names = ["kite", *(data.classes[k] for k in ORDER), "tie"]
    logits, fixed = answers(teacher(tmp_path / "w.safetensors", wide, classes=names), data)
    assert torch.equal(logits, right)
    assert load_file(fixed.weights)["head.weight"].shape[0] == 10
    assert json.loads(fixed.weights.with_suffix(".json").read_text())["classes"] == list(
        data.classes
    )
    del kdlab_home


def test_wrong_names_are_refused_with_the_nearest(kdlab_home, tmp_path, data, plain):
    tensors, _ = plain
    first = data.classes[0]
    wrong = [first + "x", *data.classes[1:]]
    spec = teacher(tmp_path / "w.safetensors", tensors, classes=wrong)
    with pytest.raises(ModelError, match=rf"first '{first}'. Nearest: {first}x"):
        check(spec, data)
    with pytest.raises(ModelError, match=rf"has '{first}x'. Nearest: {first}"):
        named({first + "x": first}, (), data)
    with pytest.raises(ModelError, match="not once among"):
        named({data.classes[1]: first}, (), data)
    with pytest.raises(ModelError, match="no file of names"):
        named(str(tmp_path / "none.txt"), (), data)
    del kdlab_home


def test_names_that_are_known_are_matched_without_being_asked(data):
    turned = data.classes[::-1]
    assert named(None, (*turned, "kite"), data) == (*turned, "kite")
    assert named(None, data.classes, data) == data.classes
    assert named(None, tuple(map(str, range(10))), data) is None
    assert named(None, (), data) is None
    assert named({}, (), data) == data.classes


@pytest.mark.long
def test_all_sources_give_the_labels_of_the_teacher_that_was_put_right(
    kdlab_home, tmp_path, in_this_process
):
    """It has twelve outputs in another order, and answers in process, cached and served."""
    torch.manual_seed(0)
    model = {"type": "models/cifar_resnet", "depth": 8, "width": [8, 8, 16, 16]}
    plain = CifarResNet(depth=8, width=(8, 8, 16, 16)).architecture(10, 1).state_dict()
    names = [str(k) for k in ORDER]
    cases = {
        "plain": (plain, None),
        "wide": (with_head(plain, [0, *ORDER, 5]), ["no", *names, "none"]),
    }
    students = {}
    for case, (tensors, classes) in cases.items():
        path = tmp_path / f"{case}.safetensors"
        save_file(tensors, path)
        block = {"type": "train/teacher", "model": model | {"weights": str(path)}}
        asked = ("compare=[in_process,cached,served]", "train.epochs=1")
        run = kdlab.load(
            "smoke/served", *asked, {"teacher": block | {"classes": classes}}
        ).start()
        assert run.wait().state == "finished", run.status.error
        for source in ("in_process", "cached", "served"):
            (file,) = run.folder.path.glob(f"members/{source}/seed0/student.safetensors")
            students[case, source] = load_file(file)
    for source in ("in_process", "cached", "served"):
        expected, actual = students["plain", source], students["wide", source]
        for name, tensor in expected.items():
            if source == "served":  # its batches differ, and so do the last bits
                torch.testing.assert_close(tensor, actual[name], rtol=1e-3, atol=1e-4)
            else:
                assert torch.equal(tensor, actual[name]), (source, name)
    del kdlab_home, in_this_process
