"""A linear probe trains a last layer in seconds, on a backbone that knows photos or not."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from sklearn.linear_model import LogisticRegression
from threadpoolctl import threadpool_limits

from kdlab.config.check import construct
from kdlab.config.folders import located
from kdlab.config.load import from_dict
from kdlab.errors import SpecError, WeightsError
from kdlab.events.event import discard_event
from kdlab.models.model import Normalised
from kdlab.train.linear_probe import _put_into
from kdlab.train.teacher import TeacherSpec, prepare, recipe_hash

NETWORK = {"type": "models/cifar_resnet", "depth": 14, "width": [16, 32, 64, 96]}


def teacher(**more):
    block = {
        "type": "train/teacher",
        "model": NETWORK,
        "data": {"use": "data/clothes"},
        **more,
    }
    return construct(TeacherSpec, from_dict(block, "teacher"))


def foreign(tmp_path):
    """Write the network that comes with kdlab, with a last layer for three other classes."""
    state = load_file(located("kdlab://clothes_resnet.safetensors"))
    state["head.weight"], state["head.bias"] = torch.zeros(3, 96), torch.zeros(3)
    path = tmp_path / "foreign.safetensors"
    save_file(state, path)
    return path


# Enough photos to tell the two teachers apart.
FEW = {"use": "data/clothes", "train_samples": 700, "test_samples": 300}


@pytest.mark.slow("a network on hundreds of photos, twice")
def test_a_backbone_that_knows_photos_makes_a_teacher_in_seconds(kdlab_home, tmp_path):
    backbone = str(foreign(tmp_path))
    with threadpool_limits(1):  # the regressions' threads wait for each other otherwise
        known = prepare(teacher(data=FEW, probe=True, backbone=backbone), discard_event)
        blank = prepare(teacher(data=FEW, probe=True), discard_event)
        again = prepare(teacher(data=FEW, probe=True, backbone=backbone), discard_event)
    assert known.top1 > 75
    assert blank.top1 < 60
    facts = json.loads((known.weights.parent / "facts.json").read_text())
    assert facts["epoch"] == 0
    assert again.weights == known.weights


@pytest.mark.parametrize("classes", [2, 4])
def test_the_layer_says_what_the_regression_says(classes):
    chance = np.random.default_rng(0)
    hidden = chance.normal(3, 2, size=(200, 6))
    labels = np.arange(200) % classes
    hidden += 2 * chance.normal(size=(classes, 6))[labels]
    middle, spread = hidden.mean(0), hidden.std(0)
    fitted = LogisticRegression(max_iter=500).fit((hidden - middle) / spread, labels)
    layer = torch.nn.Linear(6, classes + 1)  # one class has no image
    _put_into(layer, fitted, middle, spread)
    probabilities = layer(torch.from_numpy(hidden).float()).softmax(1).detach().numpy()
    wanted = fitted.predict_proba((hidden - middle) / spread)
    np.testing.assert_allclose(probabilities[:, :classes], wanted, atol=1e-4)
    assert probabilities[:, classes].max() < 1e-3


def test_a_teacher_by_a_probe_is_another_one_and_by_default_nothing_is_new(tmp_path):
    recipe = {"epochs": 2, "batch": 32}
    plain = teacher(recipe=recipe)
    assert recipe_hash(plain) != recipe_hash(teacher(probe=True))
    path = foreign(tmp_path)
    begun = teacher(recipe=recipe, backbone=str(path))
    before = recipe_hash(begun)
    assert before != recipe_hash(plain)
    moved = path.rename(tmp_path / "moved.safetensors")
    assert recipe_hash(teacher(recipe=recipe, backbone=str(moved))) == before


def test_weights_that_are_taken_as_they_are_are_not_probed():
    with pytest.raises(SpecError, match="taken as they are"):
        teacher(model={**NETWORK, "weights": "a.safetensors"}, probe=True)


def test_a_backbone_of_another_network_is_refused(kdlab_home, tmp_path):
    path = foreign(tmp_path)
    shallower = {**NETWORK, "depth": 8}
    with pytest.raises(WeightsError, match="does not fit"):
        prepare(teacher(model=shallower, probe=True, backbone=str(path)), discard_event)


def test_a_layer_without_bias_gets_one():
    layer = torch.nn.Linear(3, 2, bias=False)
    fitted = LogisticRegression().fit(np.eye(3), [0, 1, 1])
    _put_into(layer, fitted, np.zeros(3), np.ones(3))
    assert layer.bias is not None
    assert isinstance(Normalised(layer, [0.5], [0.5], 2).net, torch.nn.Linear)


@pytest.mark.long
def test_an_experiment_with_a_probed_teacher_can_be_estimated(
    kdlab_home, elsewhere, monkeypatch
):
    import kdlab
    from kdlab.run import estimate as estimating
    from kdlab.run.rates import NetworkRates

    probed = (
        "teacher={type: train/teacher, probe: true, model: {type: models/cifar_resnet}}"
    )
    experiment = kdlab.load("smoke/in_process", probed, "tracking.enabled=false")
    assert experiment.spec.teachers()[0].data is not None
    rates = NetworkRates(trained=1e4, asked=1e5, parameters=1000, step_mb=1.0)
    monkeypatch.setattr(
        estimating, "network_rates", lambda *about: rates
    )  # not the subject
    assert experiment.estimate().memory_mb > 100
