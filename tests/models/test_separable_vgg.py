"""The compression student has its teacher's places and widths, and less to compute."""

import torch

from kdlab.models.blocks import cut, operations
from kdlab.models.cifar_vgg import CifarVgg
from kdlab.models.separable_vgg import SeparableVgg

ENDS = [f"features.{k}" for k in (2, 5, 9, 12, 16, 19, 22, 26, 29, 32, 36, 39)]


def test_thirteen_blocks_that_meet_without_adapters():
    teacher = cut(CifarVgg(depth=16).architecture(10, 3).eval(), ENDS)
    student = cut(SeparableVgg(depth=16).architecture(10, 3).eval(), ENDS)
    views = torch.randn(1, 3, 32, 32)
    ours, theirs = operations(student, views), operations(teacher, views)
    for one, two in zip(teacher, student, strict=True):
        wanted = one(views)
        assert two(views).shape == wanted.shape
        views = wanted
    assert len(teacher) == 13
    assert ours[0] == theirs[0]  # the first convolution stays
    assert all(a < b / 4 for a, b in zip(ours[1:-1], theirs[1:-1], strict=True))


def test_more_of_it_may_stay_as_it_is():
    whole = SeparableVgg(depth=8, plain=5).architecture(10, 3)
    same = CifarVgg(depth=8).architecture(10, 3)
    assert whole.state_dict().keys() == same.state_dict().keys()
