"""Names of timm and torchvision are checked with all else, before anything is imported."""

import subprocess
import sys

import pytest
import timm
import torchvision.models as torchvision_models

from kdlab.config.check import construct
from kdlab.config.load import from_dict
from kdlab.errors import SpecError
from kdlab.models import zoo
from kdlab.models.model import ModelSpec
from kdlab.models.timm import TimmModel


def test_sources_name_the_models_that_the_packages_list():
    listed = {name for name in timm.list_models() if name != "grown_here"}  # see below
    assert listed <= zoo._builders("timm")
    known = set(torchvision_models.list_models(module=torchvision_models))
    assert known <= zoo._builders("torchvision")


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("timm/resnet1818", "resnet18"),
        ("torchvision/mobilenet_v3_smal", "mobilenet_v3_small"),
    ],
)
def test_an_unknown_name_is_a_fault_beside_the_others(name, nearest):
    tree = from_dict({"type": name, "pretrained": 3}, "it")
    with pytest.raises(SpecError, match="pretrained: is 3"):
        construct(ModelSpec, tree)
    with pytest.raises(SpecError, match=f"type: .* has no model .*{nearest}"):
        construct(ModelSpec, from_dict({"type": name}, "it"))


def test_a_tag_of_weights_is_no_part_of_the_name():
    assert TimmModel(variant="resnet18.a1_in1k").variant == "resnet18.a1_in1k"


def test_a_model_that_somebody_else_registered_is_known():
    module = sys.modules[__name__]

    def grown_here(**options):
        return timm.create_model("resnet10t", **options)

    grown_here.__module__ = module.__name__
    module.__all__ = []
    timm.models.register_model(grown_here)
    assert TimmModel(variant="grown_here").build(3, 3).num_classes == 3


@pytest.mark.processes
def test_a_known_name_is_found_without_an_import():
    code = (
        "import sys\n"
        "from kdlab.models.timm import TimmModel\n"
        "from kdlab.models.torchvision import TorchvisionModel\n"
        "TimmModel(variant='vit_tiny_patch16_224'), TorchvisionModel(variant='resnet18')\n"
        "print([m for m in ('timm', 'torchvision') if m in sys.modules])"
    )
    process = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert process.stdout.strip() == "[]"
