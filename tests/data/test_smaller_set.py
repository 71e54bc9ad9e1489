"""A set written anew: the same rows, labels and splits, other pixels; complete or absent."""

import csv
import io
import json
import os
import zipfile

import numpy as np
import pytest
from PIL import Image

from kdlab.data import smaller_set
from kdlab.data.augment import Augment
from kdlab.data.encoded.decode import decoded, head, resized
from kdlab.data.image_folder import ImageFolder
from kdlab.data.image_list import ImageList
from kdlab.data.smaller_set import side_for, write_smaller
from kdlab.errors import BadInput, DataError


def photo(k, side=64, kind="JPEG"):
    """Return the bytes of a smooth picture; no two are alike."""
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
    notes = read_again(tmp_path / "small", size=16).notes(after)
    assert any(f"encoded anew from {facts.reencoded}" in line for line in notes)


def test_classes_keep_their_order_and_images_without_label_or_split_stay(photos, tmp_path):
    archive = zipfile.ZipFile(photos.root)
    with open(tmp_path / "all.csv", "w", newline="") as file:
        table = csv.writer(file)
        table.writerow(("path", "label", "split"))
        for k, name in enumerate(archive.namelist()):
            label = "" if k == 3 else ("zebra, striped", "ant")[k % 2]
            table.writerow((name, label, "test" if k > 9 else ""))

    class Ordered(ImageList):
        def find(self, root, inventory):
            super().find(root, inventory)
            inventory.classes = ("zebra, striped", "ant", "none of these")

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


def pixels_of(archive, name):
    return np.asarray(Image.open(archive.open(name)).convert("RGB"))


def test_without_loss_the_pixels_are_those_of_the_resize(photos, tmp_path):
    facts = write_smaller(photos, tmp_path / "small", quality=None)
    assert (facts.form, facts.psnr_db, facts.as_png) == ("WebP lossless", None, 0)
    store = photos.store()
    with zipfile.ZipFile(tmp_path / "small" / "images.zip") as archive:
        kinds = {Image.open(archive.open(name)).format for name in archive.namelist()}
        for row, name in enumerate(archive.namelist()):
            raw = store.read(row)
            full = decoded(raw, head(raw), np.copy)
            small = resized(full, (24, 16), "bicubic")
            assert np.array_equal(pixels_of(archive, name), small), store.location(row)
    assert kinds == {"WEBP"}


def noise(path, sizes, kind):
    rng = np.random.default_rng(0)
    with zipfile.ZipFile(path, "w") as archive:
        for k, (height, width) in enumerate(sizes):
            raw = io.BytesIO()
            pixels = rng.integers(0, 256, (height, width, 3), np.uint8)
            Image.fromarray(pixels).save(raw, **kind)
            archive.writestr(
                f"train/{'ab'[k % 2]}/{k}.{kind['format'].lower()}", raw.getvalue()
            )
    return ImageFolder(root=str(path), size=16, kept="encoded")


def test_what_grows_without_loss_is_counted_and_what_has_its_size_stays(
    tmp_path, kdlab_home
):
    sizes = [(24, 24), (16, 16), (24, 24), (16, 20)]
    spec = noise(tmp_path / "n.zip", sizes, {"format": "JPEG", "quality": 20})
    facts = write_smaller(spec, tmp_path / "small", quality=None)
    assert facts.larger == 2
    assert "2 in more bytes than the original" in str(facts)
    after = read_again(tmp_path / "small").store()
    unchanged = [after.read(row) == spec.store().read(row) for row in range(4)]
    assert unchanged == [False, False, True, True]  # by class: 0 and 2, then 1 and 3


@pytest.mark.parametrize(("quality", "width"), [(None, 16_384), (85, 65_501)])
def test_an_image_too_long_for_its_form_is_png(quality, width, tmp_path, kdlab_home):
    path = tmp_path / "long.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for label in "ab":
            raw = io.BytesIO()
            pixels = np.zeros((17, width * 17 // 16 + 1, 3), np.uint8)
            pixels[:, ::7] = ord(label)
            Image.fromarray(pixels).save(raw, "BMP")
            archive.writestr(f"train/{label}/long.bmp", raw.getvalue())
    spec = ImageFolder(root=str(path), size=16, kept="encoded")
    facts = write_smaller(spec, tmp_path / "small", quality)
    assert (facts.as_png, facts.larger) == (2, 0)
    assert f"2 as PNG (a side has more than {width - 1:,} pixels)" in str(facts)
    store = read_again(tmp_path / "small", size=16).store()
    small = resized(pixels, (16, round(16 / 17 * pixels.shape[1])), "bicubic")
    raw = store.read(1)
    assert np.array_equal(decoded(raw, head(raw), np.copy), small)


def test_no_cell_of_an_original_is_a_formula(tmp_path, kdlab_home):
    path, names = tmp_path / "names.zip", ("=1+1", "+a", "-b", "@c", "d=")
    with zipfile.ZipFile(path, "w") as archive:
        for k, name in enumerate(names):
            archive.writestr(f"{name}.jpg", photo(k))
    table = tmp_path / "all.csv"
    rows = [f'"{name}.jpg",{"xy"[k % 2]}\n' for k, name in enumerate(names)]
    table.write_text("".join(["path,label\n", *rows]))
    spec = ImageList(root=str(table), images=str(path), size=16, kept="encoded")
    write_smaller(spec, tmp_path / "small")
    with open(tmp_path / "small" / "images.csv", newline="") as file:
        originals = [row["original"] for row in csv.DictReader(file)]
    assert not [cell for cell in originals if cell[0] in "=+-@"]
    assert sorted(map(os.path.normpath, originals)) == sorted(
        f"{name}.jpg" for name in names
    )
    assert read_again(tmp_path / "small").store().index.facts.classes == ("x", "y")


def test_a_run_that_ends_early_leaves_nothing_that_is_taken_for_whole(
    photos, tmp_path, monkeypatch
):
    def gone(*_):
        raise KeyboardInterrupt

    folder = tmp_path / "small"
    (tmp_path / ".small.partial").mkdir()  # left by a killed run
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
