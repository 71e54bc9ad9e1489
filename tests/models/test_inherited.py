"""A network inherits layers from one of its family."""

import pytest
import torch
from torch import nn

from kdlab.models.cifar_resnet import CifarResNet
from kdlab.models.inherited import inherit_layers
from kdlab.models.separable import Separable, SeparableConv

RESNET = CifarResNet(depth=8, width=(8, 8, 16, 16))
_TAKEN = ("mean", "var")


@pytest.fixture(autouse=True)
def _same_chances():
    torch.manual_seed(3)


def views(channels=3, side=8, count=16):
    return torch.randn(count, channels, side, side)


def teacher():
    """Return a teacher whose batch norms have seen views."""
    net = RESNET.architecture(10, 3).train()
    for _ in range(5):
        net(views() * 3)
    return net.eval()


def state(net):
    return {k: v.clone() for k, v in net.state_dict().items()}


def test_layers_that_both_have_are_the_teachers():
    theirs = teacher()
    student = Separable(of=RESNET, only=(2, 5)).architecture(10, 3)
    inherit_layers(student, theirs, views())
    tensors, names = student.state_dict(), _separable_names(student)
    assert len(names) == 2
    shared = [k for k in tensors if not k.startswith(tuple(f"{n}." for n in names))]
    changed = {k for k in shared if not tensors[k].equal(theirs.state_dict()[k])}
    behind = {f"{n.replace('conv', 'bn')}.running_{what}" for n in names for what in _TAKEN}
    assert changed == behind  # norms take their statistics of what now comes to them
    assert len(shared) > 20


def test_the_student_answers_like_its_teacher():
    """It is nearer than a fresh one, and than one whose stand-ins were each fitted apart."""
    theirs, student = teacher(), Separable(of=RESNET).architecture(10, 3).eval()
    seen, new = views(count=64), views(count=64)
    fresh = _apart(student, theirs, new)
    inherit_layers(student, theirs, seen)
    begun = _apart(student, theirs, new)
    for name, conv in _replaced(student, theirs):
        student.get_submodule(name).inherit(conv, _input(theirs, conv, seen))
    isolated = _apart(student, theirs, new)
    assert begun < 0.8 * min(isolated, fresh)


def test_a_kernel_that_is_separable_is_found():
    """Outputs agree but for what the ReLU between cuts off, beyond two standard deviations."""
    conv = nn.Conv2d(6, 9, 3, padding=1)
    across, each = torch.randn(9, 6, 1, 1), torch.randn(1, 6, 3, 3)
    conv.weight.data = across * each
    separable, seen = SeparableConv(conv).eval(), views(6, 12, 64)
    separable.inherit(conv, seen)
    wanted = conv(seen)
    apart = (separable(seen) - wanted).square().mean() / wanted.var()
    assert apart < 0.02
    kernel = separable[0].weight[:, 0]
    cosine = torch.cosine_similarity(kernel.flatten(1), each[0].flatten(1)).abs()
    assert torch.allclose(cosine, torch.ones(6), atol=1e-5)


def test_a_channel_that_is_silent_or_few_images_are_no_trouble():
    conv = nn.Conv2d(40, 5, 3, bias=False)
    separable, seen = SeparableConv(conv), views(40, 3, 2)  # two pixels for forty channels
    seen[:, 0] = 0
    separable.inherit(conv, seen)
    assert all(t.isfinite().all() for t in separable.state_dict().values())
    assert separable.eval()(seen).isfinite().all()


def test_a_teacher_stays_as_it_is():
    theirs = teacher()
    before = state(theirs)
    inherit_layers(Separable(of=RESNET).architecture(10, 3), theirs, views())
    assert all(v.equal(before[k]) for k, v in theirs.state_dict().items())
    assert not theirs.training
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in theirs.modules())


class Shared(nn.Module):
    """One layer called twice, each time with a norm of its own or the same."""

    def __init__(self, conv, norms):
        super().__init__()
        self.conv, self.norms = conv, nn.ModuleList(norms)

    def forward(self, x):
        for k in range(2):
            x = self.norms[k % len(self.norms)](self.conv(x))
        return x


@pytest.mark.parametrize("count", [1, 2], ids=["one norm", "a norm a call"])
def test_a_stand_in_that_is_called_twice_is_fitted_once(count, monkeypatch):
    theirs = Shared(
        nn.Conv2d(4, 4, 3, padding=1), [nn.BatchNorm2d(4) for _ in range(count)]
    )
    for _ in range(5):
        theirs.train()(views(4) * 3)
    student = Shared(SeparableConv(theirs.conv), [nn.BatchNorm2d(4) for _ in range(count)])
    fitted, inherit = [], SeparableConv.inherit
    monkeypatch.setattr(
        SeparableConv,
        "inherit",
        lambda self, *arguments: (fitted.append(self), inherit(self, *arguments)),
    )
    inherit_layers(student.eval(), theirs.eval(), views(4))
    assert fitted == [student.conv]
    moved = [
        not norm.running_mean.equal(right.running_mean)
        for norm, right in zip(student.norms, theirs.norms, strict=True)
    ]
    assert all(moved)  # each took its statistics of what comes to it


def test_a_pass_that_fails_leaves_no_hooks():
    theirs, student = teacher(), Separable(of=RESNET).architecture(10, 3)
    with pytest.raises(RuntimeError):
        inherit_layers(student, theirs, views(channels=1))
    assert not any(
        part._forward_hooks or part._forward_pre_hooks
        for net in (theirs, student)
        for part in net.modules()
    )


def _separable_names(net):
    return [n for n, m in net.named_modules() if isinstance(m, SeparableConv)]


def _replaced(student, theirs):
    return [(n, theirs.get_submodule(n)) for n in _separable_names(student)]


def _input(theirs, conv, seen):
    got = []
    handle = conv.register_forward_pre_hook(lambda module, inputs: got.append(inputs[0]))
    with torch.no_grad():
        theirs(seen)
    handle.remove()
    return got[0]


def _apart(student, theirs, seen):
    """Squared difference of what the last block puts out, over its variance in the teacher."""
    with torch.no_grad():
        ours, wanted = (_maps(net, seen) for net in (student.eval(), theirs))
    return float((ours - wanted).square().mean() / wanted.var())


def _maps(net, seen):
    got = []
    handle = net.blocks[-1].register_forward_hook(
        lambda module, inputs, out: got.append(out)
    )
    net(seen)
    handle.remove()
    return got[0]
