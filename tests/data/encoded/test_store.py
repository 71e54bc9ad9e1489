"""Images of folders, zips and tars: indexed once, read where they lie, checked when read."""

import hashlib
import io
import os
import tarfile
import zipfile

import numpy as np
import pytest
from PIL import Image

from kdlab.data.encoded import store as stores
from kdlab.data.encoded.inventory import Inventory
from kdlab.data.encoded.walk import walk
from kdlab.data.splits import TEST, TRAIN
from kdlab.errors import DataError


def indexed(roots, key, **more):
    def walked():
        inventory = Inventory()
        for root in roots:
            walk(str(root), inventory)
        return inventory

    where = hashlib.sha256(repr(roots).encode()).hexdigest()[:8]
    return stores.indexed(f"{key}-{where}", walked, **more)


def jpeg(colour, size=(20, 16)):
    raw = io.BytesIO()
    Image.new("RGB", size, colour).save(raw, "JPEG")
    return raw.getvalue()


FILES = {
    f"{split}/{name}/{i}.jpg": jpeg((i, 9, 200))
    for split in ("train", "test")
    for name in ("cat", "dög")
    for i in range(4)
}


def folder(where):
    for name, raw in FILES.items():
        (where / name).parent.mkdir(parents=True, exist_ok=True)
        (where / name).write_bytes(raw)
    (where / "train" / "notes.txt").write_text("no image")
    return where


def zipped(where, method=zipfile.ZIP_STORED):
    with zipfile.ZipFile(where, "w", method) as archive:
        for name, raw in FILES.items():
            archive.writestr(name, raw)
        archive.writestr("__MACOSX/train/cat/._1.jpg", b"left by a system")
    return where


def tarred(where):
    with tarfile.open(where, "w") as archive:
        for name, raw in FILES.items():
            member = tarfile.TarInfo(f"./{name}")
            member.size = len(raw)
            archive.addfile(member, io.BytesIO(raw))
    return where


@pytest.fixture(params=["folder", "stored", "deflated", "tar"])
def root(request, tmp_path, kdlab_home):
    return {
        "folder": lambda: folder(tmp_path / "photos"),
        "stored": lambda: zipped(tmp_path / "photos.zip"),
        "deflated": lambda: zipped(tmp_path / "photos.zip", zipfile.ZIP_DEFLATED),
        "tar": lambda: tarred(tmp_path / "photos.tar"),
    }[request.param]()


def test_every_image_is_read_as_it_was_written(root):
    store = indexed([root], "k")
    assert {store.index.name(i): store.read(i) for i in range(len(store))} == FILES
    assert store.index.facts.classes == ("cat", "dög")
    cats = [i for i in range(len(store)) if "/cat/" in store.index.name(i)]
    assert {int(label) for label in store.index.label[cats]} == {0}
    assert list(store.index.split) == [TEST] * 8 + [TRAIN] * 8


def test_the_digest_is_that_of_what_it_holds_not_of_where_it_lies(tmp_path, kdlab_home):
    stored = indexed([zipped(tmp_path / "a.zip")], "a").index.facts.digest
    packed = indexed([zipped(tmp_path / "b.zip", zipfile.ZIP_DEFLATED)], "b")
    assert packed.index.facts.digest == stored


def test_it_is_indexed_once_and_again_when_it_has_changed(root, monkeypatch):
    first = indexed([root], "k", verify=True).index.facts
    with monkeypatch.context() as now:
        now.setattr("kdlab.data.encoded.index.write_index", None)
        now.setattr("kdlab.data.encoded.store.write_index", None)
        assert indexed([root], "k", verify=True).index.facts == first
    if root.is_dir():
        (root / "train" / "cat" / "new.jpg").write_bytes(jpeg((1, 2, 3)))
        os.utime(root / "train" / "cat", ns=(1, 1))  # a clock that ticks every 4 ms
    else:
        os.utime(root, ns=(1, 1))
    again = indexed([root], "k")
    assert len(again) == len(FILES) + root.is_dir()


def test_a_damaged_index_is_made_again(root, kdlab_home):
    path = indexed([root], "k")._folder / "label.npy"
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    path.write_bytes(raw)
    store = indexed([root], "k", verify=True)
    assert int(store.index.label.max()) == 1


def test_a_file_that_was_changed_where_it_lies_is_named(tmp_path, kdlab_home):
    root = folder(tmp_path / "photos")
    store = indexed([root], "k")
    changed = root / "test" / "cat" / "0.jpg"
    changed.write_bytes(b"short")
    with pytest.raises(DataError, match=r"cat/0\.jpg has 5 bytes, it had"):
        store.read(0)
    changed.unlink()
    with pytest.raises(DataError, match=r"cat/0\.jpg cannot be read"):
        store.read(0)


def test_a_byte_of_a_zip_that_is_another_is_noticed(tmp_path, kdlab_home):
    root = zipped(tmp_path / "photos.zip")
    store = indexed([root], "k")
    with root.open("r+b") as file:
        file.seek(int(store.index.start[3]) + 150)  # behind its header
        file.write(b"\xee\xee")
    with pytest.raises(DataError, match=r"differs from its checksum"):
        store.read(3)


@pytest.mark.parametrize(
    ("name", "raw", "words"),
    [
        ("photos.zip", b"no zip", "cannot be read"),
        ("photos.tar", b"no tar" * 200, "cannot be read"),
        ("photos.tar", b"\x1f\x8b" + b"0" * 50, "gunzip"),
        ("photos.rar", b"Rar!", "is not a supported data set file"),
        ("photos.zip", None, "does not exist"),
    ],
)
def test_what_is_no_set_is_refused_with_the_remedy(tmp_path, kdlab_home, name, raw, words):
    if raw is not None:
        (tmp_path / name).write_bytes(raw)
    with pytest.raises(DataError, match=words):
        indexed([tmp_path / name], "k")


def test_a_folder_linked_into_itself_ends(tmp_path, kdlab_home):
    root = folder(tmp_path / "photos")
    (root / "train" / "again").symlink_to(root)
    assert len(indexed([root], "k")) == len(FILES)


def test_columns_are_memory_mapped(root):
    store = indexed([root], "k")
    assert not store.index.size.flags.owndata
    assert isinstance(store.index.size, np.ndarray)
