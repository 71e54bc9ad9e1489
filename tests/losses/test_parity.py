"""Losses and their gradients are those of torchdistill, from one sample and two classes up.

Not similarity: its rows have length 1 by the sum there, by the square in the paper and here.
"""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kdlab.features.attention import Attention
from kdlab.features.relation import Relation
from kdlab.losses.dist import Dist
from kdlab.losses.hinton import Hinton

mid_level = pytest.importorskip("torchdistill.losses.mid_level")

LOGITS = {
    "student_module_path": "s", "student_module_io": "output",
    "teacher_module_path": "t", "teacher_module_io": "output",
}  # fmt: skip
OUTPUTS = {"student_output_path": "s", "teacher_output_path": "t"}


def same(ours, theirs, student, teacher):
    """Assert that values and gradients agree to 1e-5, in float64."""
    outcomes = []
    for loss in (ours, theirs):
        leaf = student.clone().requires_grad_()
        value = loss(leaf, teacher)
        value.backward()
        outcomes.append((value.detach(), leaf.grad))
    torch.testing.assert_close(outcomes[0][0], outcomes[1][0], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(outcomes[0][1], outcomes[1][1], rtol=1e-5, atol=1e-5)


def asked(module):
    """Return a loss of two tensors; torchdistill looks each up by its module's path."""
    return lambda s, t: module({"s": {"output": s}}, {"t": {"output": t}}, None)


sizes = given(
    seed=st.integers(0, 10_000),
    rows=st.integers(1, 9),
    classes=st.sampled_from([2, 3, 10, 100, 1000]),
    temperature=st.sampled_from([0.5, 1.0, 4.0, 20.0]),
)


def logits(seed, rows, classes):
    generator = torch.Generator().manual_seed(seed)
    return 3 * torch.randn((2, rows, classes), generator=generator, dtype=torch.float64)


@settings(max_examples=40, deadline=None)
@sizes
def test_kd_of_logits_and_of_standardised_logits(seed, rows, classes, temperature):
    classes = max(3, classes)  # two standardised logits teach nothing
    student, teacher = logits(seed, rows, classes)
    labels = torch.zeros(rows, dtype=torch.int64)
    for ours, kind in ((Hinton(temperature=temperature), mid_level.KDLoss),
                       (Hinton(temperature=temperature, standardise=True),
                        mid_level.LogitStdKDLoss)):  # fmt: skip
        theirs = kind(**LOGITS, temperature=temperature, alpha=0.0, beta=1.0)
        soft = asked(theirs)  # without T squared where no hard loss is asked for
        same(
            lambda s, t, loss=ours: loss.soft(s, t, labels),
            lambda s, t, soft=soft: soft(s, t) * temperature**2,
            student, teacher,
        )  # fmt: skip


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    rows=st.integers(2, 9),
    classes=st.sampled_from([3, 10, 100]),
    temperature=st.sampled_from([0.5, 1.0, 4.0, 20.0]),
)
def test_dist(seed, rows, classes, temperature):
    student, teacher = logits(seed, rows, classes)
    labels = torch.zeros(rows, dtype=torch.int64)
    ours = Dist(temperature=temperature, between_weight=2.0, within_weight=0.5)
    theirs = mid_level.DISTLoss(**LOGITS, beta=2.0, gamma=0.5, tau=temperature)
    same(lambda s, t: ours.soft(s, t, labels), asked(theirs), student, teacher)


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10_000), rows=st.integers(2, 7), width=st.sampled_from([3, 16, 64])
)
def test_relations_of_vectors(seed, rows, width):
    student, teacher = logits(seed, rows, width)
    ours = Relation(distance_weight=25.0, angle_weight=50.0)
    theirs = mid_level.RKDLoss(
        **OUTPUTS, dist_factor=25.0, angle_factor=50.0, reduction="mean"
    )
    same(ours.distance, asked(theirs), student, teacher)


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10_000), rows=st.integers(1, 5))
def test_attention_of_maps(seed, rows):
    student = logits(seed, rows, 6 * 16)[0].view(rows, 6, 4, 4)
    teacher = logits(seed + 1, rows, 9 * 16)[1].view(rows, 9, 4, 4)
    theirs = mid_level.ATLoss({}, mode="code").compute_at_loss
    same(Attention().distance, theirs, student, teacher)
