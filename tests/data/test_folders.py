"""Folders as people have them: every file is in one split, the user's own, or said in words."""

import io
import os
import re
import tarfile
from collections import defaultdict
from itertools import count
from typing import NamedTuple

import numpy as np
import pytest
from PIL import Image

from kdlab.checks import checked
from kdlab.checks.data import DataFacts
from kdlab.data.encoded import formats
from kdlab.data.encoded.formats import kind_of, readable
from kdlab.data.image_folder import ImageFolder
from kdlab.data.parquet import ParquetImages
from kdlab.data.webdataset import WebDataset
from kdlab.errors import DataError

KINDS = {
    "data/image_folder": ImageFolder,
    "data/webdataset": WebDataset,
    "data/parquet": ParquetImages,
}
PARTS = ("train", "validation", "test")
FORMATS = {".avif": "AVIF", ".jp2": "JPEG2000", ".png": "PNG"}
HIDDEN, STRAY, BESIDE = "hidden or a system's", "in no class folder", "left out, beside"
NOWHERE, KNOWN, OUT = "leads nowhere", "in it or holds it", "a link out of the folder"
number = count()


def image(suffix=".png"):
    """Return the bytes of a picture; no two are alike."""
    shade = next(number)
    raw = io.BytesIO()
    colour = (shade % 256, shade // 256, 7)
    Image.new("RGB", (9, 8), colour).save(raw, FORMATS.get(suffix.lower(), "JPEG"))
    return raw.getvalue()


def shard(entries):
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as archive:
        for name, content in entries:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return raw.getvalue()


def samples(numbers, suffix="jpg", label="cls"):
    return [
        entry
        for k in numbers
        for entry in (
            (f"{k:04}.{suffix}", image(".jpg")),
            (f"{k:04}.{label}", b"ab"[k % 2 :][:1]),
        )
    ]


class Folder(NamedTuple):
    """`files`: each with its split, `drawn` for any, or words of the line that counts it."""

    files: dict[str, str]
    split: str  # the line about the split's origin
    says: tuple[str, ...] = ()  # words in lines of checks
    classes: tuple[str, ...] = ("cat", "dog")
    links: dict[str, str] = {}  # to what each leads  # noqa: RUF012
    raw: dict[str, bytes] = {}  # of what is no plain image  # noqa: RUF012


def both(prefix, where, images=3, suffix=".png"):
    return {
        f"{prefix}{name}/{k}{suffix}": where
        for name in ("cat", "dog")
        for k in range(images)
    }


OWN = "split taken from your folders: "
SPLITS = both("train/", "train", 12) | both("val/", "validation") | both("test/", "test")

FOLDERS = {
    "splits two levels up": Folder(
        both("set/train/animals/", "train", 9) | both("set/test/animals/", "test"),
        OWN + "train/, test/; drawn with seed 0: 2 of train for validation",
        ("chosen by few validation images: 2, each 50.0 points",),
    ),
    "splits below the classes": Folder(
        {f"{name}/{part}/{k}.png": part
         for name in ("cat", "dog") for part in ("train", "test") for k in range(9)},
        OWN + "train/, test/; drawn with seed 0: 2 of train for validation",
    ),
    "splits below the classes and strays in a class": Folder(
        {f"{name}/{part}/{k}.png": part
         for name in ("cat", "dog") for part in ("train", "test") for k in range(9)}
        | {"dog/4.png": STRAY},
        OWN + "train/, test/; drawn with seed 0: 2 of train for validation",
    ),
    "mixed suffixes": Folder(
        both("", "drawn", 5, ".jpg") | both("a/", "drawn", 1, ".avif")
        | both("", "drawn", 1, ".jp2") | both("", "drawn", 2, ".jfif")
        | {"cat/x.psd": ".psd", "dog/y.txt": ".txt", "z.txt": ".txt",
           "cat/README": "without a suffix"},
        "no split found: train 72, validation 6, test 22 % drawn with seed 0",
        ("fewer than 10 train images of 2 of 2 classes (cat ",),
    ),
    "strays": Folder(
        SPLITS | {"train/x.png": STRAY, "y.png": STRAY, "studio/1.png": BESIDE,
                  "studio/deep/2.png": BESIDE, "cat/0.png": BESIDE},
        OWN + "train/, val/, test/",
    ),
    "hidden and system folders": Folder(
        SPLITS | dict.fromkeys(
            ("train/.ipynb_checkpoints/1-checkpoint.png", "train/@eaDir/1.png", ".git/objects/ab",
             "__MACOSX/train/cat/._0.png", "$RECYCLE.BIN/1.png", "train/cat/._0.png",
             "test/Thumbs.db", "test/dog/.DS_Store", "val/desktop.ini"), HIDDEN),
        OWN + "train/, val/, test/",
    ),
    "links": Folder(
        SPLITS | {"train/cat/dead.png": NOWHERE, "train/self": NOWHERE, "train/loop": KNOWN,
                  "train/kitten": KNOWN, "train/parent": KNOWN, "test/bird": OUT,
                  "test/bird/b.png": "test", "train/bird/one.png": "train"},
        OWN + "train/, val/, test/",
        ("no validation images of 1 of 3 classes (bird); elsewhere they have 2",
         "fewer than 10 train images of 1 of 3 classes (bird 1)"),
        ("bird", "cat", "dog"),
        {"train/cat/dead.png": "nowhere.png", "train/self": "self", "train/loop": "..",
         "train/kitten": "cat", "train/parent": "../..", "test/bird": "../../away"},
    ),
    "empty classes and classes of one image": Folder(
        SPLITS | {"train/none/read.me": ".me", "train/one/1.png": "train"},
        OWN + "train/, val/, test/",
        ("no test images of 1 of 3 classes (one); elsewhere they have 1",
         "no validation images of 1 of 3 classes (one)", "of 1 of 3 classes (one 1)"),
        ("cat", "dog", "one"),
    ),
    "unlike splits": Folder(
        SPLITS | {"test/bird/1.png": "test", "test/bird/2.png": "test"},
        OWN + "train/, val/, test/",
        ("no train images of 1 of 3 classes (bird); elsewhere they have 2",),
        ("bird", "cat", "dog"),
    ),
    "upper case": Folder(
        both("TRAIN/", "train", 5, ".PNG") | both("Validation/", "validation", 2, ".JPG")
        | both("Testing/", "test", 2, ".JPEG") | {"TRAIN/THUMBS.DB": HIDDEN, "A.TXT": ".txt"},
        OWN + "TRAIN/, Validation/, Testing/",
    ),
    "numbers": Folder(
        {f"{name}/{k}.png": "drawn" for name in ("10", "9", "2") for k in range(10)},
        "no split found: train 73, validation 7, test 20 % drawn with seed 0",
        classes=("2", "9", "10"),
    ),
    "emoji, accents and blanks": Folder(
        {f"train/{name}/{k} 🐈.png": "train"
         for name in ("🐈", "caf\u00e9", "a b") for k in range(5)}
        | {f"test/{name}/{k}.png": "test"
           for name in ("🐈", "cafe\u0301", "a b") for k in range(5)},
        OWN + "train/, test/; drawn with seed 0: 2 of train for validation",
        classes=("a b", "café", "🐈"),
    ),
    "a table beside": Folder(
        SPLITS | {"labels.csv": ".csv", "train/labels.tsv": ".tsv"}, OWN + "train/, val/, test/"
    ),
    "shards in split folders": Folder(
        {"train/000.tar": "train", "train/001.tar": "train", "validation/000.tar": "validation",
         "test/000.tar": "test", "notes.md": ".md", ".cache/x": HIDDEN},
        "split taken from your data: train, validation, test",
        classes=("a", "b"),
        raw={f"{name}.tar": shard(samples(range(8 * k, 8 * k + 8))) for k, name in enumerate(
            ("train/000", "train/001", "validation/000", "test/000"))},
    ),
    "a class that is called train": Folder(
        {f"{name}/{k}.png": "drawn" for name in ("bus", "train") for k in range(10)},
        "no split found: train 70, validation 10, test 20 % drawn with seed 0",
        classes=("bus", "train"),
    ),
    "a test without labels": Folder(
        both("train/", "train", 10)
        | {"test/1.png": STRAY, "test/2.png": STRAY, "more/3.png": BESIDE},
        OWN + "train/; drawn with seed 0: 2 of train for validation and 4 of train for test",
    ),
    "one class, of two folders": Folder(
        {f"{part}/cat/{k}.png": "drawn" for part in ("first", "second") for k in range(5)},
        "no split found: train 70, validation 10, test 20 % drawn with seed 0",
        ("there is one class, cat: nothing to tell it from",
         "one class, folders of one name: 2 (first/cat + second/cat)"),
        ("cat",),
    ),
}  # fmt: skip


def write_set(root, folder):
    away = root.parent / "away"
    away.mkdir()
    (away / "b.png").write_bytes(image())
    for name in folder.files:
        path = root / name
        if name in folder.links or any(
            name.startswith(f"{link}/") for link in folder.links
        ):
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        suffix = path.suffix.lower()
        plain = suffix in readable()
        path.write_bytes(folder.raw.get(name) or (image(suffix) if plain else b"x"))
    for name, target in folder.links.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).symlink_to(target)
    return root


def placed(spec, data, root):
    """Return the splits of each file; a file of many images has those of all of them."""
    index = spec.store().index
    parts = defaultdict(list)
    for part in PARTS:
        for row in getattr(data, part).tolist():
            holder = index.facts.holders[index.holder[row]]
            name = index.name(row)
            path = holder if index.start[row] >= 0 else os.path.join(holder, name)
            parts[os.path.relpath(path, root)].append(part)
    return parts


@pytest.mark.parametrize("name", FOLDERS)
def test_every_file_is_accounted_for_and_every_split_is_the_users(
    name, tmp_path, kdlab_home
):
    folder = FOLDERS[name]
    root = write_set(tmp_path / "set", folder)
    spec = KINDS[kind_of(str(root))](root=str(root), size=8, kept="encoded")
    data = spec.load()
    lines = spec.notes(data)
    assert data.classes == folder.classes
    assert folder.split in lines
    notes = [*lines, *(one.found for one in checked(DataFacts.from_data(data)))]
    for words in folder.says:
        assert any(words in line for line in notes), (words, notes)

    there = {
        os.path.relpath(os.path.join(at, own), root)
        for at, folders, files in os.walk(root)
        for own in (*files, *(f for f in folders if os.path.islink(os.path.join(at, f))))
    }
    through = {
        own for own in folder.files if any(own.startswith(f"{x}/") for x in folder.links)
    }
    assert there | through == set(folder.files)  # the test forgets none
    parts, groups = placed(spec, data, root), defaultdict(list)
    for path, where in folder.files.items():
        if where in PARTS:  # where validation is drawn, it is so from train
            drawn = "of train for" in folder.split and where == "train"
            assert set(parts.pop(path)) <= ({*PARTS} if drawn else {where}), path
        elif where == "drawn":
            assert len(parts.pop(path)) == 1, path
        else:
            groups[where].append(path)
    assert not parts
    for words, paths in groups.items():
        (line,) = (line for line in lines if words in line)
        if words.startswith((".", "without")):  # in the line of all suffixes
            assert f"{len(paths)} {words}" in line.partition(" read; ")[2]
            continue
        counted, named = re.fullmatch(
            rf".*{re.escape(words)}.*: (\d+) \((.*)\)", line
        ).groups()
        assert int(counted) == len(paths)
        shown = named.removesuffix(" ...").split(", ")
        for path in paths:
            assert any(path.startswith(one.partition(" -> ")[0]) for one in shown) or (
                named.endswith(" ...") and len(shown) == 5
            ), (path, line)


def test_the_examples_are_as_many_as_they_are_said_to_be():
    assert len(FOLDERS) >= 12


@pytest.mark.parametrize("suffix", [".avif", ".jp2", ".jfif", ".PNG"])
def test_what_pillow_reads_has_its_pixels(suffix, tmp_path, kdlab_home):
    for k in range(4):
        path = tmp_path / "set" / "ab"[k % 2] / f"{k}{suffix}"
        path.parent.mkdir(parents=True, exist_ok=True)
        raw = io.BytesIO()
        Image.new("RGB", (16, 16), (200, 100, 50)).save(
            raw, FORMATS.get(suffix.lower(), "JPEG")
        )
        path.write_bytes(raw.getvalue())
    for form in ("decoded", "encoded"):
        data = ImageFolder(
            root=str(tmp_path / "set"), size=16, kept=form, test_share=0.5
        ).load()
        pixels = data.inputs[np.arange(4)].astype(int)
        assert np.abs(pixels - np.array([200, 100, 50])[:, None, None]).max() <= 4


@pytest.fixture
def without_heif(monkeypatch):
    def forget():
        for cached in (formats.decoders, formats.readable):
            cached.cache_clear()

    monkeypatch.setattr(formats, "find_spec", lambda name: None)
    forget()
    yield
    forget()


def test_photos_of_a_phone_need_a_package_and_that_is_said(
    tmp_path, kdlab_home, without_heif
):
    folder = Folder(both("", "drawn", 5) | {"cat/IMG_1.HEIC": ""}, "")
    root = write_set(tmp_path / "set", folder)
    spec = ImageFolder(root=str(root), size=8)
    (first, *_) = spec.notes(spec.load())
    assert first == (
        "10 .png read; 1 .heic (to read them: pip install 'kdlab[heic]') left out"
    )


@pytest.mark.parametrize(
    ("files", "words"),
    [
        (
            ("train/1.png", "test/2.png"),
            r"images in class folders: .*left out, in no class folder: 2",
        ),
        (("a.png", "labels.csv"), "There is a .csv file in it: give that"),
        (
            ("test/cat/1.png", "test/dog/2.png"),
            "all images are of test/; there are none to train",
        ),
    ],
)
def test_a_folder_that_cannot_be_trained_on_is_refused_with_what_it_has(
    files, words, tmp_path, kdlab_home
):
    root = write_set(tmp_path / "set", Folder(dict.fromkeys(files, ""), ""))
    with pytest.raises(DataError, match=words):
        ImageFolder(root=str(root), size=8).load()


def test_roots_that_are_splits_are_taken_for_them(tmp_path, kdlab_home):
    root = write_set(tmp_path / "set", FOLDERS["a table beside"])
    spec = ImageFolder(root=f"{root}/{{train,val,test}}", size=8)
    data = spec.load()
    assert [len(getattr(data, part)) for part in PARTS] == [24, 6, 6]
    assert "split taken from your data: train, val, test" in spec.notes(data)
    apart = ImageFolder(root=f"{root}/train", test_root=f"{root}/test", size=8)
    data = apart.load()
    assert len(data.test) == 6
    assert (
        "split taken from your data: test_root; drawn with seed 0: 2 of train for validation"
        in apart.notes(data)
    )
