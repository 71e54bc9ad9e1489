"""A compressed student has its teacher's places and widths, and less to compute."""

import pytest
import torch
import torchvision

from kdlab.errors import ModelError
from kdlab.models.blocks import cut, operations
from kdlab.models.cifar_resnet import CifarResNet
from kdlab.models.cifar_vgg import CifarVgg
from kdlab.models.patch_net import PatchNet
from kdlab.models.separable import Separable
from kdlab.models.torchvision import TorchvisionModel

ENDS = [f"features.{k}" for k in (2, 5, 9, 12, 16, 19, 22, 26, 29, 32, 36, 39)]


@pytest.mark.long
def test_thirteen_blocks_that_meet_without_adapters():
    teacher = cut(CifarVgg(depth=16).architecture(10, 3).eval(), ENDS)
    student = cut(Separable(of=CifarVgg(depth=16)).architecture(10, 3).eval(), ENDS)
    views = torch.randn(1, 3, 32, 32)
    ours, theirs = operations(student, views), operations(teacher, views)
    for teacher_block, student_block in zip(teacher, student, strict=True):
        wanted = teacher_block(views)
        assert student_block(views).shape == wanted.shape
        views = wanted
    assert len(teacher) == 13
    assert ours[0] == theirs[0]  # the first convolution stays
    assert all(a < b / 4 for a, b in zip(ours[1:-1], theirs[1:-1], strict=True))


def test_the_imagenet_workload_is_cut_in_the_same_places():
    spec = Separable(of=TorchvisionModel(variant="vgg16_bn"))
    with torch.device("meta"):  # 138 million parameters need not be filled
        teacher, student = torchvision.models.vgg16_bn(), spec.architecture(1000, 3)
    assert len(cut(teacher.eval(), ENDS)) == 13
    assert len(cut(student.eval(), ENDS)) == 13
    saved = sum(p.numel() for p in teacher.parameters()) - sum(
        p.numel() for p in student.parameters()
    )
    assert saved == pytest.approx(12.9e6, rel=0.02)  # nearly all of the convolutions


def test_the_students_of_table_2_have_their_sizes():
    """Parameters and operations (twice the multiplications) that Pipe-BD prints."""
    spec = Separable(of=CifarVgg(depth=16), only=(2, 3, 8, 9, 11, 12))
    student = spec.architecture(10, 3).eval()
    assert sum(p.numel() for p in student.parameters()) == pytest.approx(7.25e6, rel=0.01)
    work = sum(operations(cut(student, ENDS), torch.randn(1, 3, 32, 32)))
    assert 2 * work == pytest.approx(0.39e9, rel=0.03)  # with norms and activations
    large = Separable(of=TorchvisionModel(variant="vgg16_bn"), only=(2, 5))
    with torch.device("meta"):
        full, reduced = torchvision.models.vgg16_bn(), large.architecture(1000, 3)
    saved = sum(p.numel() for p in full.parameters()) - sum(
        p.numel() for p in reduced.parameters()
    )
    assert saved == pytest.approx(0.28e6, rel=0.05)


def test_a_convolution_that_is_not_there_is_named():
    with pytest.raises(ModelError, match="convolution 14, and models/cifar_vgg has 13"):
        Separable(of=CifarVgg(depth=16), only=(2, 14)).architecture(10, 3)


def test_strides_stay_and_the_beginning_may():
    plain = CifarResNet(depth=8).architecture(10, 3)
    separable = Separable(of=CifarResNet(depth=8)).architecture(10, 3)
    views = torch.randn(2, 3, 32, 32)
    assert separable(views).shape == plain(views).shape
    same = Separable(of=CifarVgg(depth=8), plain=4).architecture(10, 3)
    ordinary = CifarVgg(depth=8).architecture(10, 3)
    changed = same.state_dict().keys() ^ ordinary.state_dict().keys()
    assert {name.split(".")[1] for name in changed} == {"16"}  # the last one only


def test_a_network_without_such_convolutions_is_refused():
    with pytest.raises(ModelError, match="no convolution after the first 1"):
        Separable(of=PatchNet()).architecture(10, 3)
