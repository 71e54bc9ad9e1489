"""A set written anew: the same rows, labels and splits, other pixels, and whole or not there."""

import csv
import io
import json
import zipfile

import numpy as np
import pytest
from PIL import Image

from kdlab.data import smaller_set
from kdlab.data.augment import Augment
from kdlab.data.image_folder import ImageFolder
from kdlab.data.image_list import ImageList
from kdlab.data.smaller_set import side_for, write_smaller
from kdlab.errors import BadInput, DataError


def photo(k, side=64, kind="JPEG"):
    """Smooth, each another."""
    rows, columns = np.mgrid[0 : side * 3 // 2, 0:side]
    waves = [np.sin((k + 1) * rows / 40 + c) * np.cos(columns / (20 + k)) for c in range(3)]
    raw, pixels = io.BytesIO(), (127 + 100 * np.stack(waves, -1)).astype(np.uint8)
    Image.fromarray(pixels).save(raw, kind, quality=95)
    return raw.getvalue()


@pytest.fixture
def photos(tmp_path, kdlab_home):
    """A zip in which splits and classes take turns in the order of names."""
    path = tmp_path / "photos.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for k in range(12):
            part = "test" if k % 3 == 2 else "train"
            kind = "PNG" if k == 4 else "JPEG"
            name = f"{k:02}/{part}/{('cat', 'dog')[k % 2]}/{k}.{kind.lower()}"
            archive.writestr(name, photo(k, 20 if k == 6 else 64, kind))
    return ImageFolder(root=str(path), size=16, kept="encoded")


def read_again(folder, **fields):
    return ImageList(root=str(folder / "images.csv"), kept="encoded", **fields)


def test_rows_labels_and_splits_stay_and_the_digest_is_another(photos, tmp_path):
    facts = write_smaller(photos, tmp_path / "small", factor=2.0)
    before, after = photos.load(), read_again(tmp_path / "small", size=16).load()
    for name in ("labels", "train", "validation", "test"):
        assert np.array_equal(getattr(before, name), getattr(after, name)), name
    assert before.classes == after.classes
    assert before.digest != after.digest
    assert facts.reencoded == photos.store().index.facts.digest
    sides = np.minimum(*(getattr(after.inputs.store.index, n) for n in ("height", "width")))
    assert sides.tolist() == [20 if k == 6 else 32 for k in range(12)]  # never enlarged
    assert after.inputs.store.index.quick.all()
    every = np.arange(12)
    apart = np.abs(before.inputs[every].astype(int) - after.inputs[every]).mean((1, 2, 3))
    assert apart.max() < 4  # each is still itself: neighbours are 40 apart
    assert np.array_equal(before.inputs[every[6:7]], after.inputs[every[6:7]])
    assert facts.psnr_db > 30
    assert facts.bytes_after < 0.7 * facts.bytes_before
    said = read_again(tmp_path / "small", size=16).notes(after)
    assert any(f"encoded anew from {facts.reencoded}" in line for line in said)


def test_classes_keep_their_order_and_images_without_label_or_split_stay(photos, tmp_path):
    archive = zipfile.ZipFile(photos.root)
    with open(tmp_path / "all.csv", "w", newline="") as file:
        table = csv.writer(file)
        table.writerow(("path", "label", "split"))
        for k, name in enumerate(archive.namelist()):
            label = "" if k == 3 else ("zebra, striped", "ant")[k % 2]
            table.writerow((name, label, "test" if k > 9 else ""))

    class Ordered(ImageList):
        def find(self, root, found):
            super().find(root, found)
            found.classes = ("zebra, striped", "ant", "none of these")

    spec = Ordered(root=str(tmp_path / "all.csv"), images=photos.root, size=16)
    write_smaller(spec, tmp_path / "small")
    before = spec.store().index
    after = read_again(tmp_path / "small").store().index
    assert after.facts.classes == ("zebra, striped", "ant", "none of these")
    assert before.label.tolist() == after.label.tolist()
    assert before.split.tolist() == after.split.tolist()


@pytest.mark.parametrize(
    ("size", "crop_pct", "crop", "factor", "side"),
    [
        (96, None, None, None, 96),
        (224, 0.875, None, None, 256),
        (96, None, 0.35, None, 163),
        (224, 0.875, 0.08, None, 448),
        (224, 0.875, 0.08, 1.5, 336),
    ],
)
def test_the_side_is_what_the_views_need(size, crop_pct, crop, factor, side):
    spec = ImageFolder(
        root="x", size=size, crop_pct=crop_pct, augment=Augment(resized_crop=crop)
    )
    assert side_for(spec, factor) == side


def test_without_loss_it_is_the_resized_image(photos, tmp_path):
    facts = write_smaller(photos, tmp_path / "small", quality=None)
    assert (facts.form, facts.psnr_db) == ("WebP lossless", None)
    with zipfile.ZipFile(tmp_path / "small" / "images.zip") as archive:
        kinds = {Image.open(archive.open(name)).format for name in archive.namelist()}
    assert kinds == {"WEBP"}


def test_a_run_that_ends_early_leaves_nothing_that_is_taken_for_whole(
    photos, tmp_path, monkeypatch
):
    def gone(*_):
        raise KeyboardInterrupt

    folder = tmp_path / "small"
    (tmp_path / ".small.partial").mkdir()  # of one that was killed
    (tmp_path / ".small.partial" / "images.zip").write_bytes(b"half")
    with monkeypatch.context() as patch:
        patch.setattr(smaller_set, "seal", gone)
        with pytest.raises(KeyboardInterrupt):
            write_smaller(photos, folder)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["photos.zip"]
    write_smaller(photos, folder)
    assert json.loads((folder / "meta.json").read_text())["facts"]["images"] == 12
    with pytest.raises(BadInput, match="small exists"):
        write_smaller(photos, folder)


def test_damage_is_found_when_it_is_read(photos, tmp_path):
    write_smaller(photos, tmp_path / "small")
    table = tmp_path / "small" / "images.csv"
    table.write_bytes(table.read_bytes().replace(b"cat", b"dog"))
    with pytest.raises(DataError, match=r"images\.csv differs from its hash"):
        read_again(tmp_path / "small").store()


def test_broken_images_are_refused_or_keep_their_rows(photos, tmp_path):
    with zipfile.ZipFile(photos.root, "a") as archive:
        archive.writestr("03/train/cat/bad.jpg", photo(1)[:900])
    with pytest.raises(DataError, match="1 of 13 images cannot be decoded"):
        write_smaller(photos, tmp_path / "small")
    assert not (tmp_path / "small").exists()
    skipping = ImageFolder(root=photos.root, size=16, kept="encoded", broken="skip")
    write_smaller(skipping, tmp_path / "small")
    after = read_again(tmp_path / "small", size=16, broken="skip").load()
    assert np.array_equal(skipping.load().train, after.train)


@pytest.mark.parametrize(
    "wrong", [{"quality": 0}, {"quality": 101}, {"factor": 0.5}, {"factor": 0}]
)
def test_settings_are_held_to_their_ranges(wrong, photos, tmp_path):
    with pytest.raises(BadInput, match="quality of 1 to 100 and a factor"):
        write_smaller(photos, tmp_path / "small", **wrong)
