"""Sets at a URL: a real HTTP server with ranges, fsspec's memory; blocks that are kept."""

import io
import os
import tarfile
import zipfile

import fsspec
import numpy as np
import pytest
from http_site import Site
from PIL import Image

from kdlab.data.encoded import remote
from kdlab.data.image_folder import ImageFolder
from kdlab.data.webdataset import WebDataset
from kdlab.errors import DataError


def jpeg(k):
    raw = io.BytesIO()
    pixels = np.random.default_rng(k).integers(0, 256, (24, 32, 3), np.uint8)
    Image.fromarray(pixels).save(raw, "JPEG")
    return raw.getvalue()


FILES = {f"train/{name}/{k:02}.jpg": jpeg(k) for name in ("cat", "dog") for k in range(8)}


def zipped():
    raw = io.BytesIO()
    with zipfile.ZipFile(raw, "w") as archive:
        for name, content in FILES.items():
            archive.writestr(name, content)
    return raw.getvalue()


def shards():
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as archive:
        for k, content in enumerate(FILES.values()):
            for suffix, inside in (("cls", b"%d" % (k % 2)), ("jpg", content)):
                member = tarfile.TarInfo(f"{k:03}.{suffix}")
                member.size = len(inside)
                archive.addfile(member, io.BytesIO(inside))
    return raw.getvalue()


@pytest.fixture
def site(tmp_path, monkeypatch):
    monkeypatch.setenv("KDLAB_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(remote, "_WAITS_S", (0.01, 0.01, 0.01))
    site = Site()
    # A connection of its own: those of another test's server may still be open.
    fsspec.filesystem("http").clear_instance_cache()
    yield site
    site.close()


def local(tmp_path):
    path = tmp_path / "photos.zip"
    path.write_bytes(zipped())
    return ImageFolder(root=str(path), size=16, kept="encoded")


def test_a_zip_at_a_url_shows_the_views_of_one_here(site, tmp_path):
    site.files["/photos.zip"] = zipped()
    far = ImageFolder(root=site.url("/photos.zip"), size=16, kept="encoded").load()
    near = local(tmp_path).load()
    assert far.digest == near.digest
    ids = np.arange(16)
    assert np.array_equal(far.views(ids, 0), near.views(ids, 0))
    asked = len(site.asked)
    assert np.array_equal(far.views(ids, 1), near.views(ids, 1))
    assert len(site.asked) == asked  # its blocks are here by now
    assert (far.local_share(), near.local_share()) == (1.0, 1.0)
    for path in remote.blocks_folder().glob("*/*"):
        path.unlink()
    assert far.local_share() == 0.0


def test_shards_at_a_url(site):
    site.files["/a b/train-0.tar"] = shards()
    root = site.url("/a%20b/train-{0..0}.tar")
    data = WebDataset(root=root, size=16, kept="encoded", classes=("cat", "dog")).load()
    store = data.inputs.store
    assert sorted(store.read(row) for row in range(16)) == sorted(FILES.values())


def test_a_set_that_changed_there_is_read_anew(site):
    site.files["/photos.zip"] = zipped()
    spec = ImageFolder(root=site.url("/photos.zip"), size=16, kept="encoded")
    before = spec.load(verify=True).digest
    files = dict(FILES, **{"train/cat/09.jpg": jpeg(99)})
    raw = io.BytesIO()
    with zipfile.ZipFile(raw, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    site.files["/photos.zip"], site.etag = raw.getvalue(), '"2"'
    data = spec.load(verify=True)
    assert data.digest != before
    assert {data.inputs.store.read(row) for row in range(17)} == set(files.values())


def test_a_damaged_block_is_fetched_again(site):
    site.files["/photos.zip"] = zipped()
    data = ImageFolder(root=site.url("/photos.zip"), size=16, kept="encoded").load()
    first = data.views(np.arange(16), 0)
    blocks = [path for path in remote.blocks_folder().glob("*/*") if path.is_file()]
    assert blocks
    for path in blocks:
        raw = bytearray(path.read_bytes())
        raw[-100] ^= 1
        path.write_bytes(raw)
    asked = len(site.asked)
    assert np.array_equal(data.views(np.arange(16), 0), first)
    assert len(site.asked) > asked


def test_a_server_that_fails_now_and_then_is_asked_again(site):
    site.files["/photos.zip"] = zipped()
    site.failing = 2
    data = ImageFolder(root=site.url("/photos.zip"), size=16, kept="encoded").load()
    assert len(data.labels) == 16


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("/absent.zip", "does not exist"),
        ("/broken.zip", "cannot be read"),
        ("/whole.zip", "no HTTP ranges"),
    ],
)
def test_what_cannot_be_had_is_said(site, monkeypatch, name, words):
    site.files["/broken.zip"] = b"no zip" * 500
    site.files["/whole.zip"] = zipped()
    monkeypatch.setattr(remote, "BLOCK", 1000)
    site.ranges = name != "/whole.zip"
    with pytest.raises(DataError, match=words):
        ImageFolder(root=site.url(name), size=16).load()


def test_a_kind_of_url_that_could_run_something_is_refused():
    for place in (
        "file:///etc/passwd",
        "simplecache::http://a/b.zip",
        "github://a:b@c/d.zip",
    ):
        with pytest.raises(
            DataError, match=r"this kind of URL is not supported|does not exist"
        ):
            ImageFolder(root=place).load()


def test_the_blocks_that_were_used_longest_ago_go(site, monkeypatch):
    monkeypatch.setattr(remote, "BLOCK", 1000)
    memory = fsspec.filesystem("memory")
    memory.pipe("/kdlab-test/x.bin", bytes(range(256)) * 40)
    holder = remote.RemoteHolder("memory://kdlab-test/x.bin", [10_240, 1])
    assert holder.part(0, 10_240) == bytes(range(256)) * 40
    blocks = sorted(remote.blocks_folder().glob("*/*"), key=lambda p: p.stat().st_size)
    assert len(blocks) == 11
    for age, path in enumerate(blocks):
        os.utime(path, (10_000 + age, 10_000 + age))
    remote.make_room(5000)
    left = set(remote.blocks_folder().glob("*/*"))
    assert 3 <= len(left) <= 4
    assert left == set(blocks[-len(left) :])
    memory.rm("/kdlab-test", recursive=True)


def test_a_folder_there_is_listed_once_a_run_and_a_web_server_lists_none(site):
    memory = fsspec.filesystem("memory")
    for name, raw in FILES.items():
        memory.pipe(f"/listed/{name}", raw)
    spec = ImageFolder(root="memory://listed", size=16, kept="encoded")
    before = spec.load(verify=True).digest
    memory.pipe("/listed/train/cat/99.jpg", jpeg(99))
    assert spec.load(verify=True).digest != before
    memory.rm("/listed", recursive=True)
    with pytest.raises(DataError, match="a web server does not list folders"):
        ImageFolder(root=site.url("/photos"), size=16).load()


def test_a_file_that_is_gone_there_is_shown_in_grey_where_that_is_asked(site):
    memory = fsspec.filesystem("memory")
    for name, raw in FILES.items():
        memory.pipe(f"/vanishing/{name}", raw)
    spec = ImageFolder(root="memory://vanishing", size=16, kept="encoded", broken="skip")
    data = spec.load()
    memory.rm("/vanishing/train/cat/03.jpg")
    shown = data.inputs[np.arange(16)]
    assert (shown[3] == 128).all()
    assert not (shown[4] == 128).all()
    memory.rm("/vanishing", recursive=True)


def test_a_folder_in_memory_is_a_set(site):
    memory = fsspec.filesystem("memory")
    for name, raw in FILES.items():
        memory.pipe(f"/photos/{name}", raw)
    data = ImageFolder(root="memory://photos", size=16, kept="encoded").load()
    assert data.classes == ("cat", "dog")
    store = data.inputs.store
    assert {store.index.name(row): store.read(row) for row in range(16)} == FILES
    memory.rm("/photos", recursive=True)
    with pytest.raises(DataError, match="does not exist"):
        ImageFolder(root="memory://photos/elsewhere", size=16).load()
