"""Class folders on disk and in zips: the splits, what is wrong with them, real CIFAR-10."""

import io
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from kdlab.data.image_folder import ImageFolder
from kdlab.errors import DataError

REAL = Path(__file__).parents[2].parent / "shared" / "data"


def png(colour, size=(10, 8)):
    raw = io.BytesIO()
    Image.new("RGB", size, colour).save(raw, "PNG")
    return raw.getvalue()


def tree(folder, names):
    for i, name in enumerate(names):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(png((i % 256, 7, 9)))
    return folder


def classes(prefix="", count=10):
    return [f"{prefix}{c}/{i}.png" for c in ("cat", "dog") for i in range(count)]


def test_a_plain_tree_is_split(tmp_path):
    data = ImageFolder(root=str(tree(tmp_path, classes())), size=8).load()
    assert data.classes == ("cat", "dog")
    assert data.shape == (3, 8, 8)
    assert (len(data.train), len(data.validation), len(data.test)) == (14, 2, 4)
    assert list(data.inputs[0, :, 0, 0]) == [0, 7, 9]


def test_split_folders_are_kept(tmp_path):
    tree(tmp_path, classes("train/") + classes("val/", 3) + classes("test/", 2))
    data = ImageFolder(root=str(tmp_path), size=8, channels=1).load()
    assert (len(data.train), len(data.validation), len(data.test)) == (20, 6, 4)
    assert data.shape == (1, 8, 8)


def test_zips_together_are_one_set(tmp_path):
    for part in ("one", "two"):
        with zipfile.ZipFile(tmp_path / f"{part}.zip", "w") as archive:
            for i in range(6):
                archive.writestr(f"set/train/{part}/{i}.png", png((i, 0, 0)))
                archive.writestr(f"set/test/{part}/{i}.png", png((i, 0, 0)))
    roots = (str(tmp_path / "one.zip"), str(tmp_path / "two.zip"))
    data = ImageFolder(root=roots, size=8, validation_share=0.5).load()
    assert data.classes == ("one", "two")
    assert (len(data.train), len(data.validation), len(data.test)) == (6, 6, 12)


def test_a_changed_tree_is_decoded_again(tmp_path):
    spec = ImageFolder(root=str(tree(tmp_path, classes())), size=8)
    before = spec.load().digest
    (tmp_path / "cat/0.png").write_bytes(png((99, 99, 99)))
    assert spec.load().digest != before


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda p: p / "absent", "does not exist"),
        (lambda p: p, "holds no images in class folders"),
        (
            lambda p: tree(p, ["cat/0.png"]).joinpath("cat"),
            "holds no images in class folders",
        ),
    ],
)
def test_missing_or_empty_names_the_path(tmp_path, make, words):
    path = make(tmp_path)
    with pytest.raises(DataError, match=words) as caught:
        ImageFolder(root=str(path)).load()
    assert str(path) in str(caught.value)


def test_every_damaged_image_is_named(tmp_path):
    tree(tmp_path, classes())
    (tmp_path / "cat/3.png").write_bytes(png((1, 2, 3))[:40])
    (tmp_path / "dog/5.png").write_text("not an image")
    with pytest.raises(DataError) as caught:
        ImageFolder(root=str(tmp_path)).load()
    message = str(caught.value)
    assert "2 of 20 images" in message
    assert str(tmp_path / "cat/3.png") in message
    assert str(tmp_path / "dog/5.png") in message


def grey(values, suffix):
    raw = io.BytesIO()
    Image.fromarray(values).save(raw, suffix)
    return raw.getvalue()


@pytest.mark.parametrize(
    ("values", "suffix"),
    [
        (np.array([[0, 257 * 100, 65535]] * 3, np.uint16), "png"),
        (np.array([[0, 257 * 100, 65535]] * 3, np.uint16), "tiff"),
        (np.array([[0.0, 100 / 255, 1.0]] * 3, np.float32), "tiff"),
    ],
)
def test_more_than_eight_bits_are_scaled(tmp_path, values, suffix):
    tree(tmp_path, classes())
    (tmp_path / "cat/3.png").unlink()
    (tmp_path / f"cat/3.{suffix}").write_bytes(grey(values, suffix))
    spec = ImageFolder(root=str(tmp_path), size=4, channels=1)
    index = spec.store().index
    (row,) = (i for i in range(len(index)) if index.name(i) == f"cat/3.{suffix}")
    pixels = spec.load().inputs[row, 0, 0]
    assert pixels[0] == 0
    assert pixels[-1] == 255
    assert 60 < int(pixels[1]) < 140  # scaled from 3 to 4 pixels


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (np.array([[0.0, 3.5]], np.float32), "from 0 to 3.5"),
        (np.array([[0.0, np.nan]], np.float32), "floating-point pixels"),
        (np.array([[-5, 70_000]], np.int32), "from -5 to 70000"),
    ],
)
def test_numbers_that_no_rule_covers_are_refused(tmp_path, values, words):
    tree(tmp_path, classes())
    (tmp_path / "cat/x.tiff").write_bytes(grey(values, "tiff"))
    with pytest.raises(DataError, match=words):
        ImageFolder(root=str(tmp_path), size=4).load()


@pytest.mark.long
def test_a_file_too_large_for_an_image_is_refused_before_it_is_unpacked(tmp_path):
    path = tmp_path / "bomb.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in classes():
            archive.writestr(name, png((1, 2, 3)))
        with archive.open("cat/huge.png", "w", force_zip64=True) as member:
            for _ in range(301):
                member.write(bytes(1_000_000))
    with pytest.raises(DataError, match="has 301 MB"):
        ImageFolder(root=str(path)).load()


def test_a_file_that_was_written_over_is_indexed_anew_at_the_next_start(tmp_path):
    """Its folder keeps its time: only the size of the file shows the change."""
    tree(tmp_path, classes())
    spec = ImageFolder(root=str(tmp_path), size=4)
    spec.load()
    with (tmp_path / "cat/3.png").open("r+b") as file:
        file.write(png((250, 0, 0), (300, 200)))
    with pytest.raises(DataError, match=r"cat/3\.png has .* bytes, it had"):
        spec.load()
    assert 250 in spec.load().inputs


def test_a_broken_zip_is_named(tmp_path):
    path = tmp_path / "x.zip"
    path.write_bytes(b"PK nonsense")
    with pytest.raises(DataError, match="cannot be read"):
        ImageFolder(root=str(path)).load()


@pytest.mark.slow("35,000 photographs are decoded")
@pytest.mark.skipif(not REAL.is_dir(), reason=f"CIFAR-10 zips are not under {REAL}")
def test_real_cifar10():
    """35,000 real photographs of two zips; pixels checked against a decoder of their own."""
    roots = tuple(
        str(REAL / name) for name in ("cifar10-train-1of2.zip", "cifar10-test.zip")
    )
    spec = ImageFolder(root=roots, size=32)
    index = spec.store().index
    data = spec.load()
    assert data.shape == (3, 32, 32)
    assert len(data.classes) == 10
    assert len(data.test) == 10_000
    assert len(data.train) + len(data.validation) == len(index) - 10_000
    for row in (0, 4_321, len(index) - 1):
        with (
            zipfile.ZipFile(index.facts.holders[index.holder[row]]) as archive,
            Image.open(io.BytesIO(archive.read(index.name(row)))) as image,
        ):
            expected = np.asarray(image.convert("RGB")).transpose(2, 0, 1)
        assert np.array_equal(data.inputs[row], expected)
        assert data.classes[data.labels[row]] == index.name(row).split("/")[-2]
