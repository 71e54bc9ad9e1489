"""Values of every loss against independent computations in NumPy, written from the papers."""

import numpy as np
import pytest
import torch
from scipy.special import log_softmax, softmax
from scipy.stats import pearsonr, zscore

from kdlab.errors import ModelError, SpecError
from kdlab.losses.dist import dist_parts
from kdlab.losses.dkd import DecoupledKd, dkd_parts
from kdlab.losses.hard import Hard
from kdlab.losses.hinton import Hinton, hinton_kd
from kdlab.losses.multi_level import MultiLevel
from kdlab.losses.soft_cross_entropy import soft_cross_entropy
from kdlab.losses.sum import Sum

CHANCE = np.random.default_rng(3)
STUDENT, TEACHER = CHANCE.normal(size=(2, 9, 6)) * 2
LABELS = CHANCE.integers(0, 6, 9)
TENSORS = tuple(map(torch.from_numpy, (STUDENT, TEACHER)))
TEMPERATURES = [0.5, 1.0, 4.0]


def kl(q, p):
    return (q * (np.log(q) - np.log(p))).sum(axis=-1).mean()


@pytest.mark.parametrize("t", TEMPERATURES)
def test_hinton(t):
    expected = t**2 * kl(softmax(TEACHER / t, 1), softmax(STUDENT / t, 1))
    assert float(hinton_kd(*TENSORS, t)) == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize("t", TEMPERATURES)
def test_the_gradient_of_hinton_is_written_out_right(t):
    student = TENSORS[0].clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda s: 3 * hinton_kd(s, TENSORS[1], t), student)


def test_hinton_by_hand():
    """q = (3/4, 1/4), p = (1/2, 1/2): KL = 3/4 ln 3/2 + 1/4 ln 1/2."""
    teacher = torch.tensor([[np.log(3.0), 0.0]])
    value = float(hinton_kd(torch.zeros(1, 2), teacher, 1.0))
    assert value == pytest.approx(0.75 * np.log(1.5) + 0.25 * np.log(0.5), rel=1e-6)


@pytest.mark.parametrize("t", TEMPERATURES)
def test_soft_cross_entropy_is_kl_plus_the_teachers_entropy(t):
    q = softmax(TEACHER / t, 1)
    expected = -(q * log_softmax(STUDENT / t, 1)).sum(1).mean() * t**2
    assert float(soft_cross_entropy(*TENSORS, t)) == pytest.approx(expected, rel=1e-10)
    entropy = -(q * np.log(q)).sum(1).mean() * t**2
    assert expected == pytest.approx(float(hinton_kd(*TENSORS, t)) + entropy, rel=1e-10)


@pytest.mark.parametrize("t", TEMPERATURES)
def test_dkd_parts(t):
    p, q = softmax(STUDENT / t, 1), softmax(TEACHER / t, 1)
    tckd, nckd = [], []
    for i, label in enumerate(LABELS):
        others = np.delete(np.arange(6), label)
        pair_q = np.array([q[i, label], 1 - q[i, label]])
        pair_p = np.array([p[i, label], 1 - p[i, label]])
        tckd.append(kl(pair_q, pair_p))
        rest_q, rest_p = q[i, others], p[i, others]
        nckd.append(kl(rest_q / rest_q.sum(), rest_p / rest_p.sum()))
    parts = dkd_parts(*TENSORS, torch.from_numpy(LABELS), t)
    assert float(parts[0]) == pytest.approx(t**2 * np.mean(tckd), rel=1e-9)
    assert float(parts[1]) == pytest.approx(t**2 * np.mean(nckd), rel=1e-9)


def test_dkd_equation_7_adds_up_to_the_full_divergence():
    """KD = TCKD + (1 - q_target) NCKD, sample by sample."""
    labels = torch.from_numpy(LABELS)
    total = 0.0
    for i in range(9):
        row = [tensor[i : i + 1] for tensor in TENSORS]
        tckd, nckd = dkd_parts(*row, labels[i : i + 1], 2.0)
        q_target = softmax(TEACHER / 2, 1)[i, LABELS[i]]
        total += float(tckd) + (1 - q_target) * float(nckd)
    assert total / 9 == pytest.approx(float(hinton_kd(*TENSORS, 2.0)), rel=1e-9)


@pytest.mark.parametrize("t", TEMPERATURES)
def test_dist_is_one_minus_pearson(t):
    p, q = softmax(STUDENT / t, 1), softmax(TEACHER / t, 1)
    rows = np.mean([1 - pearsonr(p[i], q[i])[0] for i in range(9)])
    columns = np.mean([1 - pearsonr(p[:, c], q[:, c])[0] for c in range(6)])
    between, within = dist_parts(*TENSORS, t)
    assert float(between) == pytest.approx(t**2 * rows, rel=1e-6)
    assert float(within) == pytest.approx(t**2 * columns, rel=1e-6)


@pytest.mark.parametrize("t", [0.5, 2.0, 20.0])
def test_standardised_logits(t):
    """The authors' z-scores, with their 1e-7, and their loss."""

    def z(logits):
        return zscore(logits, axis=1, ddof=1)

    expected = t**2 * kl(softmax(z(TEACHER) / t, 1), softmax(z(STUDENT) / t, 1))
    labels = torch.from_numpy(LABELS)
    loss = Hinton(temperature=t, standardise=True)
    assert float(loss.soft(*TENSORS, labels)) == pytest.approx(expected, rel=1e-6)
    scaled = loss.soft(7 * TENSORS[0] + 3, TENSORS[1], labels)
    assert float(scaled) == pytest.approx(expected, rel=1e-6)


def test_a_row_of_equal_logits_has_a_finite_gradient():
    student = torch.zeros((2, 5), requires_grad=True)
    value = Hinton(standardise=True).soft(student, torch.randn(2, 5), torch.zeros(2).long())
    value.backward()
    assert torch.isfinite(student.grad).all()


def test_multi_level():
    expected = 0.0
    for t in (2.0, 3.0):
        p, q = softmax(STUDENT / t, 1), softmax(TEACHER / t, 1)
        expected += t**2 * kl(q, p)
        for i in range(9):
            for j in range(9):
                expected += 0.5 * (p[i] @ p[j] - q[i] @ q[j]) ** 2 / 9
        for a in range(6):
            for b in range(6):
                expected += 0.25 * (p[:, a] @ p[:, b] - q[:, a] @ q[:, b]) ** 2 / 6
    loss = MultiLevel(temperatures=(2.0, 3.0), batch_weight=0.5, class_weight=0.25)
    value = loss.soft(*TENSORS, torch.from_numpy(LABELS))
    assert float(value) == pytest.approx(expected, rel=1e-10)


def test_hard_labels_of_a_teacher():
    expected = -log_softmax(STUDENT, 1)[np.arange(9), TEACHER.argmax(1)].mean()
    value = Hard().soft(*TENSORS, torch.from_numpy(LABELS))
    assert float(value) == pytest.approx(expected, rel=1e-10)


def test_a_sum_adds_what_its_parts_weigh():
    labels = torch.from_numpy(LABELS)
    parts = (Hinton(soft_weight=0.9), DecoupledKd(soft_weight=2.0, temperature=7.0))
    total = Sum(parts=parts)
    expected = sum(p.soft_weight * float(p.soft(*TENSORS, labels)) for p in parts)
    assert float(total.soft(*TENSORS, labels)) == pytest.approx(expected, rel=1e-10)
    assert total.of_labels
    assert "temperature is 4" in total.against_draws()
    assert "not linear" in Sum(parts=parts[1:]).against_draws()
    assert "temperature is 0.5" in Sum(parts=(Hinton(temperature=0.5),)).against_draws()
    assert not Sum(parts=(Hinton(temperature=1.0),)).against_draws()
    assert "standardise" in Hinton(temperature=1.0, standardise=True).against_draws()
    assert "not linear" in Hard().against_draws()
    assert not Sum(parts=parts[:1]).of_labels


def test_two_standardised_logits_teach_nothing_and_are_refused():
    for loss in (Hinton, DecoupledKd, MultiLevel):
        with pytest.raises(ModelError, match="there are two classes"):
            loss(standardise=True).soft(
                torch.zeros(2, 2), torch.zeros(2, 2), torch.zeros(2).long()
            )


def test_multi_level_standardises_its_divergence_alone():
    plain, standard = (
        MultiLevel(standardise=s, temperatures=(3.0,)) for s in (False, True)
    )
    labels = torch.from_numpy(LABELS)
    apart = standard.soft(*TENSORS, labels) - plain.soft(*TENSORS, labels)
    kinds = (
        Hinton(temperature=3.0, standardise=s).soft(*TENSORS, labels) for s in (True, False)
    )
    standardised, raw = kinds
    assert float(apart) == pytest.approx(float(standardised - raw), rel=1e-9)


def test_the_soft_loss_warms_up_as_mdistiller_counts():
    """min(epoch / 20, 1), where the first epoch is 1."""
    loss = DecoupledKd(warm_up_epochs=20, soft_weight=3.0)
    for epoch in range(1, 26):
        for share in (0.0, 0.5, 0.999):
            expected = 3 * min(epoch / 20, 1.0)
            assert loss.soft_weight_at(epoch - 1 + share) == pytest.approx(expected)
    assert DecoupledKd().soft_weight_at(0) == 1.0
    with pytest.raises(SpecError, match="warm_up_epochs"):
        Sum(parts=(Hinton(warm_up_epochs=2),))
