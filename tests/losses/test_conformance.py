"""Every registered loss passes the public suite; and the suite catches the usual mistakes."""

from dataclasses import dataclass

import pytest
import torch
from torch.nn.functional import kl_div, log_softmax, softmax

from kdlab.config import registry, source_index
from kdlab.errors import SpecError
from kdlab.losses.dist import Dist
from kdlab.losses.dkd import DecoupledKd
from kdlab.losses.hinton import Hinton
from kdlab.losses.multi_level import MultiLevel
from kdlab.losses.soft_loss import LossSpec, same_shape
from kdlab.testing import check_loss

NEEDS = {"losses/sum": {"parts": (Hinton(soft_weight=0.9), Dist(soft_weight=2.0))}}
NAMES = [e.name for e in source_index.index() if e.kind == "losses"]


@pytest.mark.parametrize("name", NAMES)
def test_every_loss_conforms(name):
    check_loss(registry.find(name)[0](**NEEDS.get(name, {})))


@pytest.mark.parametrize("name", NAMES)
def test_none_makes_a_mean_of_an_empty_batch(name):
    loss = registry.find(name)[0](**NEEDS.get(name, {}))
    with pytest.raises(ValueError, match="this batch is empty"):
        loss.soft(torch.zeros(0, 5), torch.zeros(0, 5), torch.zeros(0, dtype=torch.long))


@pytest.mark.parametrize("loss", [Hinton, DecoupledKd, MultiLevel])
def test_those_that_can_standardise_conform_then_too(loss):
    check_loss(loss(standardise=True))


@dataclass(frozen=True, kw_only=True)
class NoTSquared(LossSpec):
    temperature: float = 4.0

    def soft(self, student, teacher, labels):
        same_shape(student, teacher)
        log_p = log_softmax(student / self.temperature, 1)
        q = softmax(teacher.detach() / self.temperature, 1)
        return kl_div(log_p, q, reduction="batchmean")


@dataclass(frozen=True, kw_only=True)
class SummedOverBatch(LossSpec):
    def soft(self, student, teacher, labels):
        same_shape(student, teacher)
        return ((student - teacher.detach()) ** 2).sum()


@dataclass(frozen=True, kw_only=True)
class TrainsItsTeacher(LossSpec):
    def soft(self, student, teacher, labels):
        same_shape(student, teacher)
        return ((student - teacher) ** 2).mean()


@dataclass(frozen=True, kw_only=True)
class Broadcasts(LossSpec):
    def soft(self, student, teacher, labels):
        return ((student.mean(1) - teacher.detach().mean(1)) ** 2).mean()


@pytest.mark.parametrize(
    ("loss", "words"),
    [
        (NoTSquared(), "T² factor"),
        (SummedOverBatch(), "mean over the batch"),
        (TrainsItsTeacher(), "teacher gets a gradient"),
        (Broadcasts(), "no ShapeError"),
    ],
)
def test_the_suite_catches(loss, words):
    with pytest.raises(AssertionError, match=words):
        check_loss(loss)


def test_ranges():
    with pytest.raises(SpecError, match="temperature"):
        Hinton(temperature=0)
    assert torch.isfinite(
        Hinton(temperature=1e-2).soft(*torch.randn(2, 3, 4), torch.zeros(3))
    )
