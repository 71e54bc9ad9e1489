"""A hidden state and the head behind it are the network."""

import pytest
import torch

from kdlab.errors import ModelError
from kdlab.models.cifar_resnet import CifarResNet
from kdlab.models.headless import Headless, last_linear
from kdlab.models.model import load_weights
from kdlab.models.nin import NetworkInNetwork
from kdlab.models.timm import TimmModel


@pytest.mark.parametrize(
    ("spec", "width"),
    [
        (CifarResNet(depth=8, width=(4, 4, 8, 8)), 8),
        (TimmModel(variant="resnet18"), 512),
        (TimmModel(variant="mobilenetv3_small_050"), 1024),
        (TimmModel(variant="test_vit"), 64),
    ],
)
@pytest.mark.long
def test_the_head_makes_the_same_logits_of_it(tmp_path, spec, width):
    from safetensors.torch import save_file

    torch.manual_seed(0)
    network = spec.build(7, 3).eval()
    views = torch.randint(0, 256, (3, 3, 160, 160), dtype=torch.uint8)
    name = last_linear(network, views)
    path = tmp_path / "weights.safetensors"
    save_file({k: v.contiguous() for k, v in network.net.state_dict().items()}, path)
    without = Headless(model=spec, head=name, classes=7).build(width, 3).eval()
    load_weights(without.net, path)
    hidden = without(views)
    assert hidden.shape == (3, width)
    assert torch.equal(network.net.get_submodule(name)(hidden), network(views))


def test_a_network_without_a_linear_head_says_so():
    model = NetworkInNetwork(width=8).build(7, 3)
    with pytest.raises(ModelError, match="no head can be applied to its hidden state"):
        last_linear(model, torch.zeros((2, 3, 32, 32), dtype=torch.uint8))
