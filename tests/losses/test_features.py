"""Losses between inner outputs: against NumPy written from the papers, and what all must do."""

import itertools

import numpy as np
import pytest
import torch

from kdlab.config import registry, source_index
from kdlab.features.attention import Attention
from kdlab.features.cosine import Cosine
from kdlab.features.feature_loss import match_resolution
from kdlab.features.hint import Hint
from kdlab.features.relation import Relation
from kdlab.features.similarity import Similarity

CHANCE = np.random.default_rng(5)
STUDENT, TEACHER = CHANCE.normal(size=(2, 5, 4, 3, 3))
MAPS = tuple(map(torch.from_numpy, (STUDENT, TEACHER)))
VECTORS = tuple(m.flatten(1) for m in MAPS)
NAMES = [e.name for e in source_index.index() if e.kind == "features"]


def unit(x):
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def test_hint():
    expected = ((STUDENT - TEACHER) ** 2).mean()
    assert float(Hint().distance(*MAPS)) == pytest.approx(expected, rel=1e-12)


def test_cosine():
    s, t = (unit(x.reshape(5, -1)) for x in (STUDENT, TEACHER))
    assert float(Cosine().distance(*MAPS)) == pytest.approx(
        1 - (s * t).sum(1).mean(), rel=1e-9
    )


def test_attention():
    s, t = (unit((x**2).mean(1).reshape(5, -1)) for x in (STUDENT, TEACHER))
    expected = ((s - t) ** 2).mean()
    assert float(Attention().distance(*MAPS)) == pytest.approx(expected, rel=1e-9)


def test_similarity():
    s, t = (unit(x.reshape(5, -1) @ x.reshape(5, -1).T) for x in (STUDENT, TEACHER))
    expected = ((s - t) ** 2).sum() / 25
    assert float(Similarity().distance(*MAPS)) == pytest.approx(expected, rel=1e-9)


def huber(a, b):
    apart = np.abs(a - b)
    return np.where(apart < 1, 0.5 * apart**2, apart - 0.5)


def test_relation():
    s, t = (x.reshape(5, -1) for x in (STUDENT, TEACHER))
    far, wide = 0.0, 0.0
    means = [np.mean([np.linalg.norm(x[i] - x[j]) for i, j in itertools.permutations(range(5), 2)])
             for x in (s, t)]  # fmt: skip
    for i, j in itertools.permutations(range(5), 2):
        a, b = (np.linalg.norm(x[i] - x[j]) / m for x, m in zip((s, t), means, strict=True))
        far += huber(a, b) / 25
    for i, j, k in itertools.product(range(5), repeat=3):
        if i in (j, k):
            continue
        a, b = (unit(x[j] - x[i]) @ unit(x[k] - x[i]) for x in (s, t))
        wide += huber(a, b) / 125
    loss = Relation(distance_weight=2.0, angle_weight=3.0)
    assert float(loss.distance(*VECTORS)) == pytest.approx(2 * far + 3 * wide, rel=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_every_feature_loss_keeps_to_what_all_promise(name):
    loss = registry.find(name)[0]()
    student, teacher = (m.clone().requires_grad_() for m in MAPS)
    value = loss.distance(student, teacher)
    assert value.ndim == 0
    value.backward()
    assert torch.isfinite(student.grad).all()
    assert student.grad.abs().max() > 0
    assert teacher.grad is None
    same = MAPS[1].clone().requires_grad_()
    rest = loss.distance(same, MAPS[1])
    assert float(rest) == pytest.approx(0, abs=1e-9)
    rest.backward()
    assert float(same.grad.abs().max()) < 1e-6
    order = torch.arange(4, -1, -1)
    again = loss.distance(MAPS[0][order], MAPS[1][order])
    assert float(again) == pytest.approx(float(value), rel=1e-6)


def test_equal_rows_have_a_gradient_of_ordinary_size():
    """Where there is no direction there is no pull."""
    _, teacher = VECTORS
    for student in (
        torch.ones_like(teacher),
        teacher[[0, 0, 1, 2, 3]],
        torch.zeros_like(teacher),
    ):
        leaf = student.clone().requires_grad_()
        Relation().distance(leaf, teacher).backward()
        assert torch.isfinite(leaf.grad).all()
        assert leaf.grad.abs().max() < 100


def test_what_cannot_be_compared_is_said():
    assert "a vector of 8" in Hint().misfit((8,), (4, 2, 2))
    assert "compares maps" in Attention().misfit((8,), (8,))
    assert "no projector" in Hint(projector="none").misfit((8,), (4,))
    assert "197 tokens" in Hint().misfit((197, 192), (196, 384))
    assert (
        Hint().projection((197, 192), (197, 384))(torch.zeros(2, 197, 192)).shape[2] == 384
    )
    assert not Relation(projector="none").misfit((8,), (4,))


@pytest.mark.parametrize(
    ("student", "teacher", "size"),
    [(8, 4, 4), (2, 4, 2), (4, 4, 4)],
)
def test_maps_meet_at_the_smaller_size(student, teacher, size):
    a, b = match_resolution(
        torch.randn(2, 3, student, student), torch.randn(2, 5, teacher, teacher)
    )
    assert a.shape[2:] == b.shape[2:] == (size, size)


def test_projectors_bring_a_student_to_its_teachers_width():
    assert Hint().projection((4, 2, 2), (8, 2, 2))(torch.zeros(3, 4, 2, 2)).shape[1] == 8
    assert Cosine().projection((4,), (8,))(torch.zeros(3, 4)).shape == (3, 8)
    assert not list(Relation().projection((4,), (8,)).parameters())
