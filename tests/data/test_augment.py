"""A view depends on (seed, epoch, id) alone, so two processes make the same bytes."""

import subprocess
import sys

import numpy as np
import pytest

from kdlab.data.augment import Augment

IMAGES = np.random.default_rng(0).integers(0, 256, (40, 3, 12, 12), dtype=np.uint8)
IDS = np.arange(100, 140)
ALL = Augment(
    flip=True,
    crop_padding=2,
    resized_crop=0.3,
    policy="rand_augment",
    brightness=0.4,
    hue=0.1,
    cutout=4,
    erasing=0.5,
    seed=5,
)
EACH = [
    Augment(policy="rand_augment", num_ops=8, magnitude=15),
    Augment(policy="trivial_augment_wide"),
    Augment(policy="three_augment"),
    Augment(brightness=0.4, contrast=0.4, saturation=0.4, hue=0.2),
    Augment(erasing=0.7),
    Augment(flip=True),
    Augment(crop_padding=2),
    Augment(resized_crop=0.3),
    Augment(cutout=4),
    ALL,
]


@pytest.mark.parametrize("augment", EACH, ids=str)
def test_replays_in_any_batch(augment):
    views = augment.views(IMAGES, IDS, 3)
    order = np.random.default_rng(1).permutation(40)
    assert views.dtype == np.uint8
    assert np.array_equal(augment.views(IMAGES[order], IDS[order], 3), views[order])
    assert np.array_equal(augment.views(IMAGES[:1], IDS[:1], 3), views[:1])


@pytest.mark.parametrize("augment", EACH, ids=str)
def test_changes_with_the_epoch_and_leaves_its_input_alone(augment):
    before = IMAGES.copy()
    first, second = augment.views(IMAGES, IDS, 0), augment.views(IMAGES, IDS, 1)
    assert not np.array_equal(first, second)
    assert np.array_equal(IMAGES, before)


@pytest.mark.processes
def test_another_process_makes_the_same_bytes():
    code = (
        "import numpy as np, hashlib; from kdlab.data.augment import Augment;"
        "x = np.random.default_rng(0).integers(0, 256, (40, 3, 12, 12), dtype=np.uint8);"
        f"v = {ALL!r}.views(x, np.arange(100, 140), 3);"
        "print(hashlib.sha256(v.tobytes()).hexdigest())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    import hashlib

    assert (
        done.stdout.strip()
        == hashlib.sha256(ALL.views(IMAGES, IDS, 3).tobytes()).hexdigest()
    )


def test_flip_mirrors_about_half():
    views = Augment(flip=True).views(IMAGES, IDS, 0)
    mirrored = [np.array_equal(v, x[..., ::-1]) for v, x in zip(views, IMAGES, strict=True)]
    unchanged = [np.array_equal(v, x) for v, x in zip(views, IMAGES, strict=True)]
    assert sum(mirrored) + sum(unchanged) == 40
    assert 8 < sum(mirrored) < 32


def test_padded_crop_is_a_window_of_the_padded_image():
    views = Augment(crop_padding=2).views(IMAGES, IDS, 0)
    padded = np.pad(IMAGES, ((0, 0), (0, 0), (2, 2), (2, 2)))
    for view, image in zip(views, padded, strict=True):
        places = [(y, x) for y in range(5) for x in range(5)]
        assert any(
            np.array_equal(view, image[:, y : y + 12, x : x + 12]) for y, x in places
        )


def test_cutout_greys_one_square():
    white = np.full((20, 1, 12, 12), 255, np.uint8)
    views = Augment(cutout=4).views(white, IDS[:20], 0)
    assert set(np.unique(views)) == {128, 255}
    assert (views == 128).sum(axis=(1, 2, 3)).min() >= 4
    assert (views == 128).sum(axis=(1, 2, 3)).max() == 16


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
@pytest.mark.parametrize("side", [12, 16])  # 16: mirrored eight bytes at a time
def test_planes_are_cropped_as_each_by_itself(channels, side):
    images = np.random.default_rng(1).integers(0, 256, (20, 4, 9, side), dtype=np.uint8)
    augment, ids = Augment(resized_crop=0.3, flip=True, crop_padding=1), np.arange(20)
    joint = augment.views(images[:, :channels], ids, 2)
    planes = [augment.views(images[:, c : c + 1], ids, 2) for c in range(channels)]
    assert np.array_equal(joint, np.concatenate(planes, axis=1))


def test_resized_crop_of_everything_is_the_image():
    still = np.repeat(IMAGES[:1, :, :1, :1], 12, 2).repeat(12, 3)
    assert np.array_equal(Augment(resized_crop=0.2).views(still, IDS[:1], 0), still)


def test_the_fingerprint_names_the_views():
    assert Augment(flip=True).fingerprint() != Augment(flip=True, seed=1).fingerprint()
    assert Augment().fingerprint() == Augment().fingerprint()


def test_a_part_is_erased_in_the_share_of_the_images_that_was_asked_for():
    images = np.full((4000, 1, 20, 30), 7, np.uint8)
    views = Augment(erasing=0.25).views(images, np.arange(4000), 0)
    erased = (views == 128).mean((1, 2, 3))
    assert 0.23 < (erased > 0).mean() < 0.27
    assert erased.max() <= 0.36
    assert erased[erased > 0].min() >= 0.01
    assert set(np.unique(views)) == {7, 128}


def test_what_was_kept_under_a_fingerprint_is_found_by_later_releases():
    assert Augment().fingerprint() == "e878365ba1e91e16"
    assert Augment(flip=True, crop_padding=4).fingerprint() == "053792d649d22ce1"
    known = {Augment().fingerprint(), Augment(flip=True, crop_padding=4).fingerprint()}
    assert len(known | {each.fingerprint() for each in EACH}) == len(EACH) + 2


def test_grey_images_are_recoloured_too():
    grey = Augment(policy="rand_augment", hue=0.1).views(IMAGES[:, :1], IDS, 0)
    assert grey.shape == (40, 1, 12, 12)
