"""DeiT's distillation token learns from the teacher, its class token from the true labels."""

import pytest
import torch
from student_loops import make, source
from timm.models.deit import VisionTransformerDistilled
from torch.nn.functional import cross_entropy

from kdlab.losses.hard import Hard
from kdlab.models.model import Normalised
from kdlab.soft_labels.none import NoTeacher


@pytest.fixture
def network():
    torch.manual_seed(0)
    net = VisionTransformerDistilled(
        img_size=16,
        patch_size=4,
        in_chans=1,
        num_classes=10,
        embed_dim=16,
        depth=1,
        num_heads=2,
    )
    torch.nn.init.normal_(net.head.weight)
    torch.nn.init.normal_(net.head_dist.weight)
    return Normalised(net, [0.5], [0.5], 10)


def stepped(samples, folder, network, spec=None):
    """Return a loop whose model is the network, and one of its batches."""
    loss = Hard(hard_weight=0.5, soft_weight=0.5)
    loop, _ = make(samples, folder, loss=loss, momentum=0.0, weight_decay=0.0)
    loop.train_step.model = loop.train_step.run_model = network.train()
    loop.train_step.optimizer = torch.optim.SGD(network.parameters(), lr=1e-9)
    batches = source(samples, folder) if spec is None else source(samples, folder, spec)
    return loop, next(iter(batches.epoch(0, ())))


def resized(batch):
    from dataclasses import replace

    from torch.nn.functional import interpolate

    views = interpolate(batch.views.float(), size=(16, 16)).to(torch.uint8)
    return replace(batch, views=views)


def test_each_token_has_its_own_label(samples, tmp_path, network):
    loop, batch = stepped(samples, tmp_path, network)
    batch = resized(batch)
    network.net.set_distilled_training(True)
    by_class, by_token = network(batch.views)
    expected = 0.5 * cross_entropy(by_class, batch.labels)
    expected += 0.5 * cross_entropy(by_token, batch.soft.argmax(1))
    loss = loop.step(batch, len(batch.ids))
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    assert network.eval()(batch.views).shape == (len(batch.ids), 10)


def test_without_a_teacher_both_tokens_are_one(samples, tmp_path, network):
    loop, batch = stepped(samples, tmp_path, network, NoTeacher())
    batch = resized(batch)
    network.net.set_distilled_training(False)
    expected = cross_entropy(network(batch.views), batch.labels)
    network.net.set_distilled_training(True)  # as an earlier batch left it
    loss = loop.step(batch, len(batch.ids))
    assert loss.item() == pytest.approx(expected.item(), rel=1e-4)
