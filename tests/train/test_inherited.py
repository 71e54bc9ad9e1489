"""Whose tensors a student begins with."""

import pytest
import torch

from kdlab.data.synthetic import Synthetic
from kdlab.models.cifar_resnet import CifarResNet
from kdlab.models.separable import Separable
from kdlab.train.inherited import inherit, some_views

RESNET = CifarResNet(depth=8, width=(8, 8, 16, 16))
OTHER = CifarResNet(depth=8, width=(4, 4, 8, 8))


@pytest.mark.parametrize(
    ("student", "begins_so"),
    [
        (Separable(of=RESNET), True),
        (RESNET, False),  # nothing would be left to learn
        (OTHER, False),
        (Separable(of=OTHER), False),
    ],
    ids=["separable", "the same network", "other widths", "separable and of other widths"],
)
def test_another_family_and_the_network_itself_begin_afresh(student, begins_so):
    data = Synthetic(samples=40, size=8).load()
    net, teacher = student.build(len(data.classes), 3), RESNET.build(len(data.classes), 3)
    before = {k: v.clone() for k, v in net.state_dict().items()}
    assert inherit(net, teacher, some_views(teacher, data)) == begins_so
    stays = all(
        torch.equal(v, before[k]) for k, v in net.net.state_dict(prefix="net.").items()
    )
    assert stays == (not begins_so)
