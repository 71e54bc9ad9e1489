"""The networks EC-DNN trains: NiN and GoogLeNet, both without batch norm."""

import numpy as np
import pytest
import torch
from tests_support import OfClasses
from torch import nn

from kdlab.models.exported import load_exported
from kdlab.models.googlenet import GoogLeNet
from kdlab.models.model import export
from kdlab.models.nin import NetworkInNetwork
from kdlab.models.pixel_mean import fit_pixel_mean


def counted(spec, classes, channels, size):
    model = spec.build(classes, channels)
    views = torch.randint(0, 256, (2, channels, size, size), dtype=torch.uint8)
    assert model(views).shape == (2, classes)
    assert not any(isinstance(m, nn.BatchNorm2d) for m in model.modules())
    return sum(p.numel() for p in model.parameters())


def test_nin_has_nine_layers_and_its_published_size():
    assert counted(NetworkInNetwork(), 10, 3, 32) == pytest.approx(967_000, rel=0.01)
    convolutions = [
        m for m in NetworkInNetwork().build(10, 3).modules() if isinstance(m, nn.Conv2d)
    ]
    assert len(convolutions) == 9


def test_googlenet_has_its_published_size():
    """6.8 M parameters in Table 1 of the paper (5.8 M before the last layer)."""
    assert counted(GoogLeNet(), 1000, 3, 64) == pytest.approx(6_998_552, rel=0.001)


@pytest.mark.parametrize("size", [12, 16])
def test_small_ones(size):
    assert counted(NetworkInNetwork(width=16), 10, 1, size) < 20_000
    assert counted(GoogLeNet(width=0.1), 5, 1, 32) < 120_000


def test_their_first_scores_are_neither_nothing_nor_huge():
    for spec in (NetworkInNetwork(), GoogLeNet()):
        torch.manual_seed(0)
        model = spec.build(10, 3).eval()
        views = torch.randint(0, 256, (8, 3, 32, 32), dtype=torch.uint8)
        with torch.inference_mode():
            scores = model(views)
        assert 1e-3 < float(scores.std()) < 1e3


@pytest.mark.parametrize("kind", [NetworkInNetwork, GoogLeNet])
@pytest.mark.long
def test_the_mean_image_becomes_part_of_the_weights(kind, tmp_path):
    torch.manual_seed(0)
    images = np.random.default_rng(0).integers(0, 256, (50, 3, 32, 32), np.uint8)
    rows = np.arange(40)
    spec = kind(width=16 if kind is NetworkInNetwork else 0.1, pixel_mean=32)
    model = spec.build(10, 3)
    fit_pixel_mean(model, images, rows)
    seen = []
    model.net.layers[0].register_forward_hook(lambda m, i, output: seen.append(output))
    model.eval()
    scores = model(torch.from_numpy(images[:40]))
    assert float(seen[0].mean(0).abs().max()) < 1e-5  # of each pixel
    export(model, spec, tmp_path / "net.safetensors", OfClasses(10))
    again = load_exported(tmp_path / "net.safetensors")
    fit_pixel_mean(again, images[::-1], rows)  # it has one already
    assert torch.equal(again.eval()(torch.from_numpy(images[:40])), scores)
