"""Operations on images against torchvision's and timm's, with the same parameters and chances."""

from statistics import NormalDist

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from tests_support import examples
from timm.data import auto_augment as timms
from timm.data.constants import IMAGENET_DEFAULT_MEAN
from torchvision.transforms import (
    InterpolationMode,
    RandAugment,
    TrivialAugmentWide,
    autoaugment,
)
from torchvision.transforms import functional as reference

from kdlab.data import policies
from kdlab.data.augment import Augment
from kdlab.data.policies import Operation, changed
from kdlab.errors import SpecError

NAMES = list(RandAugment()._augmentation_space(31, (8, 8)))
UNIT = st.floats(0, 1, exclude_max=True)


def photo(mode="RGB", size=(37, 29), seed=0):
    chance = np.random.default_rng(seed)
    coarse = chance.integers(0, 256, (6, 8, 3), np.uint8)
    return Image.fromarray(coarse).resize(size, Image.Resampling.BICUBIC).convert(mode)


class Chances:
    """Replaces timm's random numbers, in the order in which an operation draws them."""

    def __init__(self, *numbers):
        self.numbers = list(numbers)

    def random(self):
        return self.numbers.pop(0)

    def gauss(self, mean, deviation):
        return NormalDist(mean, deviation).inv_cdf(self.numbers.pop(0))

    def choice(self, options):
        return options[int(self.numbers.pop(0) * len(options))]


def same(ours, theirs):
    return np.array_equal(np.asarray(ours), np.asarray(theirs))


@settings(deadline=None, max_examples=examples(300))
@given(st.data(), st.sampled_from(["RGB", "L"]), st.sampled_from(["rand", "trivial"]))
def test_each_operation_makes_torchvisions_bytes(data, mode, policy):
    image = photo(mode, seed=data.draw(st.integers(0, 9)))
    size = (image.height, image.width)
    chance = [data.draw(UNIT) for _ in range(3)]
    if policy == "rand":
        step = data.draw(st.integers(0, 30))
        (operation,) = policies.rand_augment(chance, 1, step, size)
        space, sign = RandAugment()._augmentation_space(31, size), chance[1]
    else:
        step = int(chance[1] * 31)
        (operation,) = policies.trivial_augment(chance)
        space, sign = TrivialAugmentWide()._augmentation_space(31), chance[2]
    name = NAMES[int(chance[0] * len(NAMES))]
    magnitudes, signed = space[name]
    magnitude = float(magnitudes[step]) if magnitudes.ndim else 0.0
    magnitude = -magnitude if signed and sign < 0.5 else magnitude
    assert operation.name == name
    assert operation.magnitude == pytest.approx(magnitude, abs=1e-4)
    theirs = autoaugment._apply_op(image, name, magnitude, InterpolationMode.NEAREST, None)
    exact = Operation(name, magnitude)  # their float32 number: no rounding between
    assert same(changed(image, [exact]), theirs)


@pytest.mark.parametrize(
    "policy",
    ["rand-m9-mstd0.5-inc1", "rand-m7-mstd0.5", "rand-m3-mstd5-inc1-p0.7-n4", "rand"],
)
@settings(deadline=None, max_examples=examples(60))
@given(data=st.data())
def test_timms_policy_draws_and_makes_what_timm_does(policy, data):
    """Operation by operation, with the same random numbers for timm's and ours."""
    image = photo(seed=data.draw(st.integers(0, 9)))
    fill = tuple(min(255, round(255 * x)) for x in IMAGENET_DEFAULT_MEAN)
    theirs = timms.rand_augment_transform(policy, {"img_mean": fill})
    count = theirs.num_layers
    inside = st.floats(0.001, 0.999)
    chance = [data.draw(inside) for _ in range(4 * count)]
    ours = iter(policies.timm_augment(chance, policy))
    for k in range(count):
        which, whether, much, way = chance[4 * k : 4 * k + 4]
        op = theirs.ops[int(which * 15)]
        if whether > op.prob:
            continue
        operation = next(ours)
        assert operation.name == op.name.replace("Increasing", "")
        signed = op.name.startswith(("Rotate", "Shear", "Translate")) or (
            op.name.endswith("Increasing") and not op.name.startswith(("Poster", "Solar"))
        )
        drawn = [0.0, *([much] if op.magnitude_std > 0 else []), *([way] if signed else [])]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(timms, "random", Chances(*drawn, 4 * way % 2 / 2))
            black = operation[:2] == ("Posterize", 0)  # Pillow refuses to keep no bit
            expected = Image.new("RGB", image.size) if black else op(image)
        pixels = changed(image, [operation])
        apart = np.abs(np.asarray(pixels, int) - np.asarray(expected, int))
        assert apart.max() <= 1  # a factor may differ by a rounding
        assert (apart > 0).mean() < 0.01
    assert next(ours, None) is None


@pytest.mark.parametrize(
    "policy",
    [
        "rand-m11",
        "rand-x3",
        "rand-n5",
        "rand-m9mstd0.5",
        "augmix",
        "rand-p2",
        "rand-mstd200",
        "",
    ],
)
def test_policies_that_are_not_known_here_are_refused(policy):
    assert not policies.is_timms(policy)
    with pytest.raises(SpecError, match="or timm's such as rand-m9"):
        Augment(policy=policy)


def test_the_magnitudes_of_nine_are_timms_and_not_torchvisions():
    chance = [3 / 15 + 1e-6, 0.0, 0.5, 0.25]
    (turned,) = policies.timm_augment([*chance, 0, 1, 0, 0], "rand-m9-mstd0.5-inc1")
    assert (turned.name, turned.magnitude) == ("Rotate", pytest.approx(27))
    (turned,) = policies.timm_augment([*chance, 0, 1, 0, 0], "rand-m7-mstd0.5")
    assert turned.magnitude == pytest.approx(21)


def test_views_by_timms_policy_follow_from_seed_epoch_and_id():
    images = np.random.default_rng(0).integers(0, 256, (6, 3, 20, 24), np.uint8)
    ids, augment = np.arange(6), Augment(policy="rand-m9-mstd0.5-inc1")
    views = augment.views(images, ids, 3)
    assert (views != images).any((1, 2, 3)).sum() >= 2
    order = np.array([4, 0, 2])
    assert np.array_equal(augment.views(images[order], ids[order], 3), views[order])
    assert not np.array_equal(augment.views(images, ids, 4), views)
    grey = augment.views(images[:, :1], ids, 3)
    assert grey.shape == (6, 1, 20, 24)


@settings(deadline=None, max_examples=examples(150))
@given(UNIT, UNIT, UNIT, st.floats(-0.5, 0.5), st.permutations(range(4)))
def test_jitter_makes_torchvisions_bytes(brightness, contrast, saturation, hue, order):
    image = photo()
    least, most = 0.6, 1.4
    factors = [
        least + (most - least) * share for share in (brightness, contrast, saturation)
    ]
    places = [order.index(k) / 4 for k in range(4)]
    chance = [brightness, contrast, saturation, hue + 0.5, *places]
    hue = -0.5 + chance[3]  # as it is computed: a rounding away may be another step of 255
    ours = changed(image, list(policies.color_jitter(chance, 0.4, 0.4, 0.4, 0.5)))
    theirs = image
    for k in order:
        theirs = (
            lambda i: reference.adjust_brightness(i, factors[0]),
            lambda i: reference.adjust_contrast(i, factors[1]),
            lambda i: reference.adjust_saturation(i, factors[2]),
            lambda i: reference.adjust_hue(i, hue),
        )[k](theirs)
    # A factor that is a rounding away may be another byte, which the next makes larger.
    difference = abs(np.asarray(ours, np.int64) - np.asarray(theirs, np.int64))
    assert difference.max() <= 3
    assert difference.mean() < 0.5


def test_what_is_not_asked_for_is_not_done():
    assert list(policies.color_jitter([0.3] * 8, 0, 0, 0, 0)) == []
    (only,) = policies.color_jitter([0.75] * 8, 0, 0, 0.4, 0)
    assert only == Operation("Color", pytest.approx(0.2))


def test_three_augment_is_one_of_three():
    drawn = [next(policies.three_augment([k / 12, 0.5])) for k in range(12)]
    assert [d.name for d in drawn] == ["Grayscale"] * 4 + ["Solarize"] * 4 + [
        "GaussianBlur"
    ] * 4
    grey = np.asarray(changed(photo(), [drawn[0]]))
    assert (grey[..., 0] == grey[..., 2]).all()
    assert same(changed(photo(), [drawn[4]]), reference.solarize(photo(), 128))


def test_all_fourteen_are_drawn_as_often():
    drawn = [
        next(policies.rand_augment([k / 1400, 0.1], 1, 9, (8, 8))) for k in range(1400)
    ]
    assert {name: sum(d.name == name for d in drawn) for name in NAMES} == dict.fromkeys(
        NAMES, 100
    )
    assert torch.linspace(0, 0.3, 31)[9] == pytest.approx(-drawn[150].magnitude)
