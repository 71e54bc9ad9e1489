"""Statistics of batch norms are those of what they get in the whole network."""

import copy

import pytest
import torch

from kdlab.config.check import construct
from kdlab.config.load import compose_card
from kdlab.data.images import DataSpec
from kdlab.data.samples import planned
from kdlab.models.cifar_resnet import CifarResNet
from kdlab.models.patch_net import PatchNet
from kdlab.train.recalibration import recalibrate


@pytest.fixture(scope="module")
def tiny():
    spec = construct(DataSpec, compose_card("data/digits_tiny"))
    return planned(spec.load(), spec.to_dict(), batch=32, seed=0, epochs=1)


def test_they_are_plain_means_over_the_views_and_weights_stay(tiny):
    """The views are those of training, which crops: plain images have other statistics."""
    torch.manual_seed(0)
    model = CifarResNet(depth=8, width=(4, 4, 8, 8)).build(10, 1).train()
    for name, buffer in model.named_buffers():
        if "running" in name:
            buffer.fill_(17.0)
    before = {k: v.clone() for k, v in model.named_parameters()}
    assert recalibrate(model, tiny, 10**6, 10**6) == 9
    first = next(m for m in model.modules() if isinstance(m, torch.nn.BatchNorm2d))
    seen = []
    first.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
    with torch.no_grad():
        model.eval()(torch.from_numpy(tiny.views(tiny.train_ids(), 0)))
        model(torch.from_numpy(tiny.data.inputs[tiny.train_ids()]))
    assert torch.allclose(first.running_mean, seen[0].mean((0, 2, 3)), atol=1e-5)
    assert torch.allclose(first.running_var, seen[0].var((0, 2, 3)), rtol=1e-3)
    assert not torch.allclose(first.running_mean, seen[1].mean((0, 2, 3)), atol=1e-5)
    assert first.momentum == 0.1
    assert all(torch.equal(v, before[k]) for k, v in model.named_parameters())


def test_it_is_the_same_wherever_it_begins(tiny):
    """So a run that was stopped has the statistics of one that was not."""
    torch.manual_seed(0)
    model = CifarResNet(depth=8, width=(4, 4, 8, 8)).build(10, 1)
    twin = copy.deepcopy(model)
    twin.train()(torch.from_numpy(tiny.data.inputs[tiny.data.test]))
    for net in (model, twin):
        recalibrate(net, tiny, 64, 32)
    pairs = zip(model.state_dict().values(), twin.state_dict().values(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


def test_without_norms_or_images_nothing_is_done(tiny):
    model = CifarResNet(depth=8, width=(4, 4, 8, 8)).build(10, 1)
    before = {k: v.clone() for k, v in model.state_dict().items()}
    assert recalibrate(model, tiny, 0, 32) == 0
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert recalibrate(PatchNet(patch=8, width=8).build(10, 1), tiny, 64, 32) == 0
