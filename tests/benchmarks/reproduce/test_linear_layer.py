"""A student that learned only features is judged by a linear layer that labelled images train."""

import pytest
import torch

import kdlab
from benchmarks.reproduce.experiment import _by_linear_layer
from kdlab.models.cifar_resnet import CifarResNet
from kdlab.models.model import export
from kdlab.train.evaluate import evaluate


def test_the_layer_is_learned_anew_and_the_file_stays(tmp_path, kdlab_home, elsewhere):
    spec = kdlab.load("smoke/none").spec
    data, model = spec.data.load(), CifarResNet(depth=8, width=(4, 4, 8, 8))
    torch.manual_seed(0)
    network, path = model.build(10, 1), tmp_path / "student.safetensors"
    export(network, model, path, data)
    before = path.read_bytes()
    accuracy = _by_linear_layer(str(path), spec)
    untrained = evaluate(network, data, data.test).top1
    assert accuracy["top1"] > untrained + 10
    assert accuracy["top5"] >= accuracy["top1"]
    assert path.read_bytes() == before
    assert accuracy == pytest.approx(_by_linear_layer(str(path), spec))
