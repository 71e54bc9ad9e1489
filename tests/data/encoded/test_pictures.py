"""Views of encoded images: the same bytes from (seed, epoch, sample) wherever they are made."""

import dataclasses
import hashlib
import multiprocessing
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from tests_support import examples
from torchvision.transforms import CenterCrop, Resize

from kdlab.data.augment import Augment
from kdlab.data.image_folder import ImageFolder
from kdlab.errors import DataError

GEOMETRY = Augment(flip=True, crop_padding=3, resized_crop=0.2, cutout=6, seed=5)
EVERYTHING = dataclasses.replace(
    GEOMETRY,
    policy="rand_augment",
    brightness=0.3,
    contrast=0.3,
    saturation=0.3,
    hue=0.1,
    erasing=0.5,
)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Twenty JPEGs of unlike sizes in two classes."""
    folder, chance = tmp_path_factory.mktemp("photos"), np.random.default_rng(0)
    for i in range(20):
        height, width = chance.integers(30, 90, 2)
        coarse = chance.integers(0, 256, (height // 5 + 1, width // 5 + 1, 3), np.uint8)
        pixels = np.kron(coarse, np.ones((5, 5, 1), np.uint8))[:height, :width]
        path = folder / ("cat", "dog")[i % 2] / f"{i:02}.jpg"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(pixels).save(path, quality=90)
    return folder


def spec(root, **options):
    options = {"size": 24, "kept": "encoded", "augment": EVERYTHING} | options
    return ImageFolder(root=str(root), **options)


def digest_of_views(root, ids, epoch):
    """Return a hash of views; another process calls it."""
    views = spec(root).load().views(np.array(ids), epoch)
    return hashlib.sha256(views.tobytes()).hexdigest()


@settings(deadline=None, max_examples=examples(50))
@given(st.lists(st.integers(0, 19), min_size=1, max_size=12), st.integers(0, 10**6))
def test_a_view_depends_on_the_sample_and_the_epoch_alone(root, ids, epoch):
    data = spec(root).load()
    views = data.views(np.array(ids), epoch)
    for sample, view in zip(ids, views, strict=True):
        assert np.array_equal(data.views(np.array([sample]), epoch)[0], view)
    out = np.zeros_like(views)
    assert data.views(np.array(ids), epoch, out) is out
    assert np.array_equal(out, views)


@pytest.mark.processes
def test_another_process_makes_the_same_bytes(root, kdlab_home):
    ids = list(range(20))
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        there = pool.apply(digest_of_views, (root, ids, 7))
        pool.close()
        pool.join()  # to terminate it would need a signal that a process may have blocked
    assert there == digest_of_views(root, ids, 7)


RECORDED = {
    "geometry": "2d5c2d7c3410e35c0820e4fe28b7b080382ce19dfa6d2121c0a7c9c7baab6a62",
    "rand_augment": "1700a6dd1472cd7057a24e9727ba05feb2d8155e0f362dde76a9b80746256cf6",
    "trivial_augment_wide": "d0ee35f2c2822a380e8eebfdfa5ddb90d3cbc7608ba924269094cb5dfac77c01",
    "mixed": "373658612f92f6b0c9a79e7d006cfcc2d583451066b6821ab4b72e943f5b4a48",
    "three_augment": "2b52e0a9693f01cb62d7bbcaa5e0e4e9e614a06e14578eae57811e05287ad16f",
}


@pytest.mark.parametrize("policy", RECORDED)
def test_views_are_those_of_every_release(tmp_path, policy):
    """A change of these bytes needs another number in PIXELS: soft labels are kept for them."""
    for name in ("cat/1.jpg", "dog/2.jpg"):
        (tmp_path / name).parent.mkdir()
        shutil.copy(Path(__file__).parent / "recorded.jpg", tmp_path / name)
    digest = hashlib.sha256()
    augment = {
        "geometry": GEOMETRY,
        "mixed": dataclasses.replace(GEOMETRY, mixup_alpha=0.8, cutmix_alpha=1.0),
    }.get(policy) or dataclasses.replace(EVERYTHING, policy=policy)
    data = spec(tmp_path, validation_share=0.5, augment=augment).load()
    for epoch in range(20):
        digest.update(data.views(np.array([0, 1]), epoch).tobytes())
    assert digest.hexdigest() == RECORDED[policy]


def test_epochs_differ_and_without_augmentation_they_do_not(root):
    ids = np.arange(20)
    data = spec(root).load()
    assert not np.array_equal(data.views(ids, 0), data.views(ids, 1))
    plain = spec(root, augment=Augment()).load()
    assert np.array_equal(plain.views(ids, 0), plain.views(ids, 1))
    assert np.array_equal(plain.views(ids, 0), plain.inputs[ids])


def test_what_is_shown_for_a_test_is_the_square_in_the_middle(root):
    data = spec(root, crop_pct=0.5).load()
    with Image.open(root / "cat" / "00.jpg") as image:
        middle = CenterCrop(24)(Resize(48)(image))  # of twice the size
        expected = np.asarray(middle, np.int64)
    shown = data.inputs[np.array([0])][0].astype(np.int64)
    assert abs(shown - expected.transpose(2, 0, 1)).max() <= 2  # Pillow rounds otherwise


def test_splits_and_labels_are_those_of_the_decoded_set(root):
    encoded, decoded = spec(root).load(), spec(root, kept="decoded").load()
    for part in ("train", "validation", "test", "labels"):
        assert np.array_equal(getattr(encoded, part), getattr(decoded, part))
    assert encoded.classes == decoded.classes
    assert encoded.shape == decoded.shape == (3, 24, 24)
    assert encoded.digest != decoded.digest  # soft labels of one do not fit the other


def test_large_images_are_kept_encoded_and_small_ones_decoded(root):
    assert type(spec(root, kept="auto", size=65).load()).__name__ == "EncodedData"
    assert type(spec(root, kept="auto", size=64).load()).__name__ == "DecodedData"


def damaged(root, folder):
    for name in ("cat/1.jpg", "dog/2.jpg", "dog/3.jpg"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes((root / "cat" / "00.jpg").read_bytes())
    return folder


def test_what_cannot_be_decoded_is_named_before_the_start(root, tmp_path):
    photos = damaged(root, tmp_path)
    for name, raw in (
        ("dog/2.jpg", (photos / "dog/2.jpg").read_bytes()[:700]),
        ("dog/3.jpg", b""),
        ("dog/4.png", b"no image"),
        ("dog/5.jpg", (photos / "dog/2.jpg").read_bytes()),
    ):
        (photos / name).write_bytes(raw)
    with pytest.raises(DataError) as caught:
        spec(photos, validation_share=0.5).load()
    message = str(caught.value)
    assert "3 of 5 images cannot be decoded; nothing was started" in message
    assert f"{photos / 'dog/2.jpg'} is cut off: its end is missing" in message
    assert f"{photos / 'dog/3.jpg'} is empty" in message
    assert f"{photos / 'dog/4.png'} is not an image" in message
    lines = []
    skipping = spec(photos, validation_share=0.5, test_share=0.0, broken="skip")
    data = skipping.load(lines.append)
    assert lines == ["3 of 5 images cannot be decoded and are skipped."]
    used = [data.inputs.store.index.name(row) for row in (*data.train, *data.validation)]
    assert sorted(used) == ["cat/1.jpg", "dog/5.jpg"]


def test_one_that_vanishes_ends_the_run_with_its_name_or_is_shown_in_grey(
    root, tmp_path, caplog
):
    photos = damaged(root, tmp_path)
    strict, lenient = (
        spec(photos, validation_share=0.5, broken=b) for b in ("refuse", "skip")
    )
    refusing, skipping = strict.load(), lenient.load()
    before = refusing.views(np.arange(3), 0)
    (photos / "dog/2.jpg").unlink()
    with pytest.raises(DataError, match=r"dog/2\.jpg cannot be read"):
        refusing.views(np.arange(3), 0)
    for _ in range(2):
        grey = skipping.inputs[np.arange(3)]
        assert (grey[1] == 128).all()
    assert np.array_equal(skipping.views(np.arange(3), 0)[[0, 2]], before[[0, 2]])
    assert [r.message for r in caplog.records if "dog/2.jpg" in r.message] == [
        f"{photos / 'dog/2.jpg'} cannot be read: [Errno 2] No such file or directory: "
        f"'{photos / 'dog/2.jpg'}'. It is shown in grey."
    ]
