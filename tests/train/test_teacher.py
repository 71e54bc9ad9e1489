from pathlib import Path

import pytest
import torch

from kdlab.data.digits import Digits
from kdlab.data.synthetic import Synthetic
from kdlab.errors import ModelError, TeacherRefused, WeightsError
from kdlab.models.cifar_resnet import CifarResNet
from kdlab.models.shrunk import ShrunkModel
from kdlab.models.timm import TimmModel
from kdlab.train.recipe import Recipe
from kdlab.train.step import TrainStep
from kdlab.train.teacher import (
    PreparedTeacher,
    PreparedTeachers,
    TeacherSpec,
    prepare,
    recipe_hash,
)
from kdlab.train.teacher_fit import check

MODEL = CifarResNet(depth=8, width=(4, 4, 8, 8))


def spec(**changes):
    values = {
        "model": MODEL,
        "data": Digits(train_samples=240),
        "recipe": Recipe(epochs=1, batch=32, threads=1),
    }
    return TeacherSpec(**values | changes)


class Events(list):
    def emit(self, event):
        self.append(event.KIND)


def test_trained_once_and_kept(digits, tmp_path, monkeypatch):
    monkeypatch.setenv("KDLAB_HOME", str(tmp_path))  # another test may have trained it
    first, again = Events(), Events()
    teacher = prepare(spec(), first.emit)
    assert "teacher_training" in first
    same = prepare(spec(), again.emit)
    assert "teacher_training" not in again
    assert same.sha256 == teacher.sha256
    assert teacher.top1 is not None
    data = digits[0]
    loaded = PreparedTeachers((teacher,)).load(data, "cpu")
    import torch

    views = torch.from_numpy(data.inputs[:5])
    assert loaded.infer(views).shape == (5, 10)
    assert torch.equal(loaded.infer(views), loaded.infer(views))  # eval mode: no dropout
    assert not any(p.requires_grad for p in teacher.build(10, 1).parameters())


def test_the_hash_is_of_what_the_weights_depend_on():
    base = recipe_hash(spec())
    assert recipe_hash(spec(recipe=Recipe(epochs=2, batch=32, threads=1))) != base
    assert recipe_hash(spec(seed=1)) != base
    assert recipe_hash(spec(min_top1=50)) == base
    assert recipe_hash(spec(recipe=Recipe(epochs=1, batch=32, threads=2))) == base


def test_a_teacher_of_timms_keeps_the_hash_that_it_had():
    """Fields that were added since must not change it: all teachers would train again."""
    taught = TeacherSpec(
        model=TimmModel(variant="resnet10t"),
        data=Synthetic(samples=40, classes=4, size=8, channels=1),
        recipe=Recipe(epochs=1, batch=32),
    )
    assert recipe_hash(taught) == "ab064f645e07eb2b"


def test_a_teacher_below_its_card_is_refused():
    with pytest.raises(TeacherRefused, match="its card demands 100 %"):
        prepare(spec(min_top1=100), Events().emit)


def test_another_number_of_classes_is_found_before_a_run(digits):
    teacher = spec(data=Synthetic(samples=40, classes=7, size=8, channels=1))
    with pytest.raises(ModelError, match="with 7 classes"):
        check(teacher, digits[0])


def test_another_number_of_channels_is_found_before_a_run(digits):
    with pytest.raises(ModelError, match="3 channels"):
        check(spec(data=Digits(channels=3)), digits[0])


def test_foreign_weights_are_checked_before_a_run(digits, tmp_path):
    model = CifarResNet(depth=8, weights=str(tmp_path / "absent.safetensors"))
    with pytest.raises(WeightsError, match="no weights file"):
        check(TeacherSpec(model=model), digits[0])


def test_what_a_teacher_lacks_is_taken_from_its_experiment():
    plain = TeacherSpec(model=MODEL)
    assert not plain.trainable
    completed = plain.in_experiment(Synthetic(), Recipe(epochs=3))
    assert completed.trainable
    assert completed.recipe.epochs == 3
    assert completed.in_experiment(Synthetic(), Recipe(epochs=4)) is completed


def test_a_teacher_has_a_name_and_a_size_of_its_own():
    plain = TeacherSpec(model=TimmModel(variant="test_resnet"))
    assert plain.called == "test_resnet"
    sized = TeacherSpec(model=TimmModel(variant="test_resnet"), size=48, name="small")
    assert (sized.called, sized.model.size, sized.size) == ("small", 48, None)
    assert TeacherSpec(model=sized.model).called == "test_resnet"


def test_the_same_weights_at_another_size_are_another_teacher(tmp_path):
    """So neither labels nor a measure of one is taken for the other's."""
    weights = Path("w"), "0" * 64
    plain, *sized = (
        PreparedTeacher(TeacherSpec(model=MODEL, size=size), *weights, None)
        for size in (None, 12, 16)
    )
    assert len({one.fingerprint for one in (plain, *sized)}) == 3
    pairs = [PreparedTeachers((plain, one)).fingerprint for one in sized]
    assert pairs[0] != pairs[1]


def test_the_same_weights_in_another_network_are_another_teacher():
    """A size of patches counts, the path of a file does not."""
    first, repatched, moved = (
        PreparedTeacher(TeacherSpec(model=model), Path("w"), "0" * 64, None).fingerprint
        for model in (
            TimmModel(variant="vit_tiny_patch16_224", options={"patch_size": 4}),
            TimmModel(variant="vit_tiny_patch16_224", options={"patch_size": 8}),
            TimmModel(
                variant="vit_tiny_patch16_224", options={"patch_size": 4}, weights="b.pt"
            ),
        )
    )
    assert first == moved != repatched


def test_a_file_of_published_weights_counts_by_its_bytes_wherever_it_lies(tmp_path):
    def hashed(place):
        model = TimmModel(variant="test_resnet", pretrained=str(place))
        return recipe_hash(spec(model=ShrunkModel.from_model(model, 8)))

    for name, content in (("a", b"one"), ("b", b"one"), ("c", b"two")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.safetensors").write_bytes(content)
    first = hashed(tmp_path / "a")
    assert first == hashed(tmp_path / "b") == hashed(tmp_path / "b/model.safetensors")
    assert first != hashed(tmp_path / "c")
    assert hashed(tmp_path / "none") != hashed(tmp_path / "neither")


def test_biases_and_weights_of_losses_do_not_decay():
    """Decay would pull a learned weight of a loss back to where it began."""
    step = TrainStep(Recipe(lr=0.1, weight_decay=0.5), torch.nn.Linear(3, 2))
    before = len(step.optimizer.param_groups)
    added = torch.nn.Linear(4, 2)
    step.add(added)
    groups = step.optimizer.param_groups[before:]
    decays = {id(p): group["weight_decay"] for group in groups for p in group["params"]}
    assert decays == {id(added.weight): 0.5, id(added.bias): 0.0}


def test_modules_beside_the_model_decay_as_the_model_does():
    """One function decides for both; here it is asked about positions of a timm model."""
    model = TimmModel(variant="test_vit").build(10, 3)
    step = TrainStep(Recipe(weight_decay=0.5), torch.nn.Linear(3, 2))
    step.add(model)
    groups = step.optimizer.param_groups[-2:]
    plain = {id(p) for g in groups if g["weight_decay"] == 0.0 for p in g["params"]}
    assert id(model.net.pos_embed) in plain
    assert id(model.net.blocks[0].attn.qkv.weight) not in plain
