"""Mixup and CutMix: replayable, as published, and the same for whoever makes the view."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests_support import examples
from torch.nn.functional import cross_entropy

from kdlab.data.augment import Augment
from kdlab.data.digits import Digits
from kdlab.data.mixing import MixRates, mix, mixing

POOL = np.arange(100, 300)
BOTH = Augment(flip=True, crop_padding=1, mixup_alpha=0.8, cutmix_alpha=1.0, seed=3)


def asked(mixup=0.0, cutmix=0.0, prob=1.0, switch=0.5):
    return MixRates(mixup, cutmix, prob, switch)


@given(st.floats(0.1, 4), st.integers(0, 1000))
@settings(max_examples=examples(20))
def test_shares_are_of_the_beta_distribution(alpha, epoch):
    how = mixing(np.arange(2000), epoch, POOL, (32, 32), 7, asked(mixup=alpha))
    assert how.share.mean() == pytest.approx(0.5, abs=0.06)
    assert how.share.var() == pytest.approx(1 / (8 * alpha + 4), abs=0.02)
    assert set(how.partners) <= set(POOL)
    assert not how.boxes.any()


def test_half_of_each_where_both_are_on_and_none_where_chance_says_so():
    ids = np.arange(4000)
    how = mixing(ids, 0, POOL, (320, 320), 7, asked(0.5, 1.0, prob=0.75))
    cut = how.boxes.any(axis=1)
    mixed = how.share < 1
    assert 0.7 < mixed.mean() < 0.8
    assert 0.4 < cut[mixed].mean() < 0.6


@given(st.integers(0, 10**6), st.integers(2, 64), st.integers(2, 64))
def test_a_box_has_the_share_that_is_the_others(epoch, height, width):
    how = mixing(np.arange(50), epoch, POOL, (height, width), 7, asked(cutmix=1.0))
    images, others = (
        np.zeros((50, 3, height, width), np.uint8),
        np.full((50, 3, height, width), 255),
    )
    mix(images, others.astype(np.uint8), how)
    assert np.allclose(1 - images.mean((1, 2, 3)) / 255, how.share)


def test_a_box_is_that_of_the_paper():
    """Algorithm A1: sides W √(1 - λ) and H √(1 - λ) around a point, cut off at the edges."""
    how = mixing(np.arange(500), 0, POOL, (40, 60), 7, asked(cutmix=1.0))
    for top, left, bottom, right in how.boxes.tolist():
        inside = top > 0 and left > 0 and bottom < 40 and right < 60
        if inside and bottom > top and right > left:
            ratios = (bottom - top) / 40, (right - left) / 60
            assert math.isclose(*ratios, abs_tol=2 / 40)


def test_pixels_are_the_weighted_mean():
    chance = np.random.default_rng(0)
    images, others = (chance.integers(0, 256, (64, 3, 8, 8), np.uint8) for _ in range(2))
    how = mixing(np.arange(64), 0, POOL, (8, 8), 7, asked(mixup=1.0))
    share = how.share[:, None, None, None]
    expected = share * images + (1 - share) * others
    mix(images, others, how)
    assert abs(images - expected).max() <= 0.5


@given(st.lists(st.integers(0, 1796), min_size=1, max_size=20), st.integers(0, 10**6))
@settings(deadline=None, max_examples=examples(30))
def test_a_mixed_view_depends_on_the_sample_and_the_epoch_alone(kdlab_digits, ids, epoch):
    views = kdlab_digits.views(np.array(ids), epoch)
    for sample, view in zip(ids, views, strict=True):
        assert np.array_equal(kdlab_digits.views(np.array([sample]), epoch)[0], view)
    out = np.zeros_like(views)
    assert kdlab_digits.views(np.array(ids), epoch, out) is out
    assert np.array_equal(out, views)


@pytest.fixture(scope="module")
def kdlab_digits(tmp_path_factory):
    with pytest.MonkeyPatch.context() as now:
        now.setenv("KDLAB_HOME", str(tmp_path_factory.mktemp("home")))
        yield Digits(augment=BOTH).load()


def test_partners_are_training_images_and_mixing_leaves_the_set_as_it_is(kdlab_digits):
    before = np.array(kdlab_digits.inputs)
    ids = kdlab_digits.train[:200]
    how = kdlab_digits.mixing(ids, 5)
    assert set(how.partners) <= set(kdlab_digits.train)
    kdlab_digits.views(ids, 5)
    assert np.array_equal(before, kdlab_digits.inputs)
    off = dataclasses.replace(BOTH, mixup_alpha=0.0, cutmix_alpha=0.0)
    plain = dataclasses.replace(kdlab_digits, augment=off)
    assert plain.mixing(ids, 5) is None
    assert np.array_equal(plain.views(ids, 5)[how.share == 1],
                          kdlab_digits.views(ids, 5)[how.share == 1])  # fmt: skip
    assert off.fingerprint() != BOTH.fingerprint()


def test_the_hard_label_is_shared(kdlab_digits):
    from kdlab.soft_labels.source import MixedLabels
    from kdlab.train.student_step import BatchStep

    scores, labels = torch.randn(6, 10), torch.arange(6)
    mixed = MixedLabels(
        torch.tensor([9, 8, 7, 6, 5, 5]), torch.tensor([1, 0.75, 0.5, 0.25, 0, 1])
    )
    step = object.__new__(BatchStep)
    step.unlabelled = False
    step.job = type(
        "Job",
        (),
        {"recipe": type("R", (), {"label_smoothing": 0.1, "hard_loss": "cross_entropy"})},
    )
    hard, counts = step._hard(scores, labels, mixed)
    both = torch.zeros(6, 10)
    for i in range(6):
        both[i, labels[i]] += mixed.share[i]
        both[i, mixed.others[i]] += 1 - mixed.share[i]
    assert hard == pytest.approx(
        float(cross_entropy(scores, both, label_smoothing=0.1)), 1e-5
    )
    assert counts.tolist() == [0, 1, 2, 6, 5, 5]


def test_images_without_a_label_are_left_to_the_teacher():
    from kdlab.train.student_step import BatchStep

    scores, labels = torch.randn(4, 10), torch.tensor([3, -1, 4, -1])
    step = object.__new__(BatchStep)
    step.unlabelled = True
    step.job = type(
        "Job",
        (),
        {"recipe": type("R", (), {"label_smoothing": 0.0, "hard_loss": "cross_entropy"})},
    )
    hard, _ = step._hard(scores, labels, None)
    assert hard == pytest.approx(
        float(cross_entropy(scores[[0, 2]], labels[[0, 2]])) / 2, 1e-6
    )
    none, _ = step._hard(scores, torch.full((4,), -1), None)
    assert float(none) == 0.0
