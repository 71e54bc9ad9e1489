"""Data that is small where it lies and huge where it is opened: refused, or held in bounds.

One child imports kdlab once and forks for each bomb, so that each has a peak of its own.
"""

import copy
import io
import json
import os
import struct
import subprocess
import sys
import tarfile
import threading
import zipfile
import zlib
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image
from tests_support import student_card

from kdlab.data.encoded import decode, remote
from kdlab.data.encoded.decode import head
from kdlab.data.image_folder import ImageFolder
from kdlab.errors import DataError

MEMORY, DISK = 300e6, 10e6  # bytes beyond what the file itself has

OPEN = """
import json, os, resource, shutil, signal, sys, threading, time, warnings
import numpy as np, PIL.Image, pyarrow.parquet, simplejpeg, torch
from pathlib import Path
import kdlab
from kdlab.config.home import read_as
from kdlab.changes.change import ChangeReader
from kdlab.data.encoded import remote
from kdlab.data.image_folder import ImageFolder
from kdlab.data.image_list import ImageList
from kdlab.data.parquet import ParquetImages
from kdlab.data.shown import InputSpec
from kdlab.data.webdataset import WebDataset
from kdlab.errors import ClusterError, KdlabError
from kdlab.experiment.folder import RunFolder
from kdlab.cluster.transport.frames import Frames
from kdlab.events.log import read_all
from kdlab.codec import from_msgpack
from kdlab.models.engines.remembered import Trial
from kdlab.models.exported import load_exported
from kdlab.models.model import load_weights
from kdlab.run.outputs.prediction import StudentAtWork

warnings.simplefilter("ignore")
remote._WAITS_S = ()
home, bombs = sys.argv[1], json.load(sys.stdin)
KINDS = {"folder": ImageFolder, "list": ImageList, "parquet": ParquetImages, "tar": WebDataset}


def on_disk():
    with_names = (os.path.join(at, n) for at, _, names in os.walk(home) for n in names)
    return sum(os.stat(p).st_blocks * 512 for p in with_names if os.path.exists(p))


def watch():
    while True:
        try:
            most[0] = max(most[0], on_disk())
        except OSError:
            pass
        time.sleep(0.002)


class Wire(Frames):
    def __init__(self, data):
        super().__init__(lambda: 10_000, None)
        for at in range(0, len(data), 4096):
            part = data[at : at + 4096]
            self.get_buffer(len(part))[: len(part)] = part
            self.buffer_updated(len(part))

    def on_nonsense(self, error):
        raise ClusterError(error)


READ = {
    "json": lambda path: read_as(list[Trial], path),
    "object": lambda path: len(read_as(dict[str, object], path)),
    "log": lambda path: len(read_all(path)),
    "orders": lambda path: len(ChangeReader(path)()),
    "status": lambda path: RunFolder(path).raw_status().error,
    "student": load_exported,
    "weights": lambda path: load_weights(torch.nn.Linear(1, 1), path),
    "config": lambda path: kdlab.load(path),
    "packed": lambda path: from_msgpack(list[float], path.read_bytes()),
    "wire": lambda path: Wire(path.read_bytes()),
}


def opened(kind, root, kept):
    if kind in READ:
        return READ[kind](Path(root))
    if kind == "predict":
        student = object.__new__(StudentAtWork)
        student.input = InputSpec(size=8)
        return student([root])
    data = KINDS[kind](root=root, size=32, kept=kept).load()
    return data.inputs[np.arange(len(data.labels))].shape


for name, bomb in bombs.items():
    shutil.rmtree(home, ignore_errors=True)
    read, write = os.pipe()
    if os.fork() == 0:
        signal.alarm(60)  # one that waits for ever is ended
        most = [0]
        threading.Thread(target=watch, daemon=True).start()
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        try:
            said = f"opened {opened(*bomb)}"
        except KdlabError as error:
            said = str(error)
        memory = 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
        os.write(write, json.dumps([said[:3000], memory, most[0], on_disk()]).encode())
        os._exit(0)
    os.close(write)
    os.wait()
    with os.fdopen(read) as answer:
        print(json.dumps([name, json.loads(answer.read() or '["it was killed", 0, 0, 0]')]))
"""


def chunk(kind, data):
    return (
        struct.pack(">I", len(data))
        + kind
        + data
        + struct.pack(">I", zlib.crc32(kind + data))
    )


def png(side, colours=False):
    """Black, with one bit a pixel or three bytes."""
    row = bytes(1 + (3 * side if colours else -(-side // 8)))
    packer = zlib.compressobj(9)
    packed = b"".join(packer.compress(row) for _ in range(side)) + packer.flush()
    head = struct.pack(
        ">IIBBBBB", side, side, 8 if colours else 1, 2 if colours else 0, 0, 0, 0
    )
    parts = ((b"IHDR", head), (b"IDAT", packed), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(*part) for part in parts)


def icon(side):
    """It says 16 by 16 pixels, and holds a PNG of more."""
    inner = png(side)
    return struct.pack("<HHHBBBBHHII", 0, 1, 1, 16, 16, 0, 0, 1, 32, len(inner), 22) + inner


def tiff(side, tile):
    """A page of so many pixels a side, in tiles of so many."""
    packed = zlib.compress(bytes(tile * tile), 9)
    tags = {256: side, 257: side, 258: 8, 259: 8, 262: 1, 277: 1, 322: tile, 323: tile}
    tags |= {324: 8, 325: len(packed)}
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, n) for tag, n in tags.items())
    begin = b"II*\0" + struct.pack("<I", 8 + len(packed)) + packed
    return begin + struct.pack("<H", len(tags)) + entries + bytes(4)


def frames(kind, side, count=50):
    """An animation of small frames whose head says another size."""
    raw = io.BytesIO()
    small = [Image.new("RGB", (16, 16), (k, 0, 0)) for k in range(count)]
    small[0].save(raw, kind, save_all=True, append_images=small[1:])
    data = bytearray(raw.getvalue())
    if kind == "GIF":
        data[6:10] = struct.pack("<HH", side, side)
    else:  # WebP: its canvas, in the first chunk
        data[24:30] = (side - 1).to_bytes(3, "little") * 2
    return bytes(data)


def jpeg(side):
    """A small JPEG whose header says another size."""
    raw = io.BytesIO()
    Image.new("RGB", (16, 16)).save(raw, "JPEG")
    data = bytearray(raw.getvalue())
    at = data.index(b"\xff\xc0")
    data[at + 5 : at + 9] = struct.pack(">HH", side, side)
    return bytes(data)


def zipped(path, images, **options):
    path = path.with_suffix(".zip")
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, **options) as archive:
        for k, raw in enumerate(images):
            archive.writestr(f"train/{'ab'[k % 2]}/{k}.png", raw)
    return str(path)


def shared_members(path):
    """Fifty thousand names for the bytes of one image."""
    path = path.with_suffix(".zip")
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a/00000.png", png(64) + bytes(7_000_000))
        for k in range(1, 50_000):
            twin = copy.copy(archive.filelist[0])
            twin.filename = f"a/{k:05}.png"
            archive.filelist.append(twin)
    return str(path)


def said_to_be(kind, side, claimed):
    """Return an image of one colour, with another size where readers look first."""
    raw = io.BytesIO()
    Image.new("RGB", (side, side), (120, 3, 9)).save(raw, kind)
    name = b"ispe\0\0\0\0" if kind == "AVIF" else b"ihdr"
    actual, changed = (name + struct.pack(">II", n, n) for n in (side, claimed))
    assert actual in raw.getvalue()
    return raw.getvalue().replace(actual, changed)


def class_folder(path, raw, suffix):
    (path / "a").mkdir(parents=True)
    for k in range(4):
        (path / "a" / f"{k}.{suffix}").write_bytes(raw)
    return str(path)


def parquet(path, images, **options):
    table = pa.table({"image": images, "label": [0] * len(images)})
    pq.write_table(table, path.with_suffix(".parquet"), compression="zstd", **options)
    return str(path.with_suffix(".parquet"))


def arrow(path, images):
    table = pa.table({"image": images, "label": [0] * len(images)})
    path.mkdir()
    how = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_stream(str(path / "data.arrow"), table.schema, options=how) as file:
        file.write_table(table)
    (path / "state.json").write_text('{"_data_files": [{"filename": "data.arrow"}]}')
    return str(path)


def endless_label(path):
    """A tar whose label has two gigabytes; none of them takes room on the disk."""
    with tarfile.open(path, "w") as archive:
        for name, size in (("0.png", 0), ("0.cls", 2 * 10**9)):
            member = tarfile.TarInfo(name)
            member.size = size
            archive.fileobj.write(member.tobuf())
    os.truncate(path, 2 * 10**9 + 4096)
    return str(path)


def pipe(path, name=""):
    """Make a pipe at this path, or with this name below it; return the path."""
    at = path / name if name else path
    at.parent.mkdir(parents=True, exist_ok=True)
    os.mkfifo(at)
    return str(path)


def device(path):
    path.symlink_to("/dev/zero")
    return str(path)


class Answers(BaseHTTPRequestHandler):
    """/endless has no end, /packed is a gigabyte of nothing, and others send on elsewhere."""

    def log_message(self, *words):
        """Quiet."""

    def do_HEAD(self):
        onto = {
            "/stays.zip": "/photos.zip",
            "/leaves.zip": f"http://localhost:{self.server.server_port}/photos.zip",
            "/leaves-too.zip": f"http://localhost:{self.server.server_port}/photos.zip",
        }.get(self.path)
        huge = self.path in ("/endless.csv", "/packed.csv")
        self.server.asked.append(f"{self.headers['Host']}{self.path}")
        self.send_response(302 if onto else 206 if huge else 404)
        if onto:
            self.send_header("URI" if "too" in self.path else "Location", onto)
        if "packed" in self.path and self.command == "GET":
            self.send_header("Content-Encoding", "gzip")
        self.send_header("Content-Length", str(1 << 30 if huge else 0))
        self.end_headers()

    def do_GET(self):
        self.do_HEAD()
        part = (
            zlib.compress(bytes(1 << 26), wbits=31)
            if "packed" in self.path
            else bytes(1 << 16)
        )
        with suppress(OSError):  # who asked has gone
            for _ in range((1 << 14) * self.path.endswith(".csv")):
                self.wfile.write(part)


@pytest.fixture(scope="module")
def site():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    server.asked = []
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def holding(path, suffix, data, size=None):
    """A file that begins with this, and has so many bytes of which the rest take no room."""
    path = path.with_suffix(suffix)
    path.write_bytes(data)
    if size is not None:
        os.truncate(path, size)
    return str(path)


def apng(side, count):
    """A PNG of so many square frames."""
    raw = io.BytesIO()
    images = [Image.new("1", (side, side), k % 2) for k in range(count)]
    images[0].save(raw, "PNG", save_all=True, append_images=images[1:])
    return raw.getvalue()


def text_png(kind):
    """A small PNG with 300 MB of words, or of a profile of colours, packed."""
    packed = zlib.compress(bytes(300_000_000), 1)
    image, at = png(16), 33  # behind IHDR
    return image[:at] + chunk(kind, b"a\0\0" + packed) + image[at:]


def pages(count):
    """A TIFF of so many pages; 0 is one that follows itself for ever."""
    raw = io.BytesIO()
    image = Image.new("L", (8, 8))
    image.save(raw, "TIFF", save_all=True, append_images=[image] * (count - 1))
    data = bytearray(raw.getvalue())
    if not count:
        at = struct.unpack_from("<I", data, 4)[0]
        struct.pack_into(
            "<I", data, at + 2 + 12 * struct.unpack_from("<H", data, at)[0], at
        )
    return bytes(data)


def bmp(side):
    raw = bytearray(b"BM" + bytes(52))
    struct.pack_into("<IHHIIiiHHI", raw, 2, 54, 0, 0, 54, 40, side, side, 1, 24, 0)
    return bytes(raw)


def within(archive):
    """A zip in a class folder of a zip."""
    raw = io.BytesIO()
    with zipfile.ZipFile(raw, "w", zipfile.ZIP_DEFLATED) as inner:
        inner.writestr("a/0.png", BIG)
    with zipfile.ZipFile(archive.with_suffix(".zip"), "w", zipfile.ZIP_DEFLATED) as outer:
        outer.writestr("train/a/0.zip", raw.getvalue())
    return str(archive.with_suffix(".zip"))


def larger_than_said(path):
    """A zip whose directory says 100 bytes of what unpacks to 100 MB."""
    at = zipped(path, [bytes(100_000_000)])
    data = bytearray(Path(at).read_bytes())
    entry = data.rindex(b"PK\1\2")
    struct.pack_into("<I", data, entry + 24, 100)
    Path(at).write_bytes(data)
    return at


def sparse(path):
    """A tar with an image of eight gigabytes, all of it a hole."""
    path = path.with_suffix(".tar")
    with tarfile.open(path, "w", format=tarfile.GNU_FORMAT) as archive:
        member = tarfile.TarInfo("train/a/0.png")
        member.type = tarfile.GNUTYPE_SPARSE
        raw = bytearray(member.tobuf(tarfile.GNU_FORMAT))
        raw[386 : 386 + 24] = b"%011o\0%011o\0" % (2**32, 0)
        raw[483:495] = b"%011o\0" % (2**33 - 1)
        raw[148:156] = b"        "
        raw[148:156] = b"%06o\0 " % sum(raw[:512])
        archive.fileobj.write(raw)
    return str(path)


def rows(path, table, **options):
    pq.write_table(table, path.with_suffix(".parquet"), compression="zstd", **options)
    return str(path.with_suffix(".parquet"))


def student(path, weights=b"", **facts):
    """An exported student: its weights, and its card with these facts changed."""
    path = path.with_suffix(".safetensors")
    path.write_bytes(weights)
    path.with_suffix(".json").write_text(json.dumps(student_card() | facts))
    return str(path)


def headed(path, header, size=None):
    raw = struct.pack("<Q", len(header) if size is None else size) + header
    return holding(path, ".safetensors", raw)


def compressed_weights(path):
    """Weights of PyTorch whose only tensor is 400 MB of nothing, deflated to 400 kB."""
    raw = io.BytesIO()
    torch.save({"weight": torch.zeros(100_000_000)}, raw)
    with (
        zipfile.ZipFile(raw) as old,
        zipfile.ZipFile(path.with_suffix(".pth"), "w", zipfile.ZIP_DEFLATED) as new,
    ):
        for name in old.namelist():
            new.writestr(name, old.read(name))
    return str(path.with_suffix(".pth"))


def run_folder(path, name, text):
    path.mkdir()
    (path / name).write_text(text)
    return str(path)


BIG = png(13_000)
PHOTO = png(64) + bytes(100_000)
NO_FILE = "a pipe or a device"

# name: (how it is opened, what makes it, words of the refusal)
BOMBS = {
    "parquet of one image a thousand times": (
        "parquet", lambda p: parquet(p, [PHOTO] * 1_000), "that unpack to"),
    "parquet of compressible images": (
        "parquet",
        lambda p: parquet(p, [bytes([k]) * 10**6 for k in range(60)], use_dictionary=False),
        "that unpack to"),
    "parquet of a million empty images": (
        "parquet", lambda p: parquet(p, [b""] * 10**6), "that unpack to"),
    "parquet table of a million rows": (
        "list",
        lambda p: parquet(p, ["a/0.png"] * 10**6), "that unpack to"),
    "compressed arrow": ("parquet", lambda p: arrow(p, [PHOTO] * 1_000), "is compressed"),
    "png in a zip": ("folder", lambda p: zipped(p, [BIG] * 8), "169,000,000 pixels"),
    "png in a class folder": (
        "folder", lambda p: class_folder(p, png(10_900), "png"), "118,810,000 pixels"),
    "png of 24 megapixels": (
        "folder", lambda p: zipped(p, [png(4_900, colours=True)] * 5), "opened"),
    "png with icons": ("folder", lambda p: class_folder(p, icon(9_000), "png"), "not an image"),
    "gif of 65,535": (
        "folder", lambda p: class_folder(p, frames("GIF", 65_535), "gif"), "4294836225 pixels"),
    "gif of 10,000": (
        "folder", lambda p: class_folder(p, frames("GIF", 10_000), "gif"), "100,000,000 pixels"),
    "webp of 10,000": (
        "folder", lambda p: class_folder(p, frames("WEBP", 10_000), "webp"), "100,000,000 pixels"),
    "webp of 3,100": (
        "folder", lambda p: class_folder(p, frames("WEBP", 3_100), "webp"), "opened"),
    "tiff with a huge tile": (
        "folder", lambda p: class_folder(p, tiff(10, 10_000), "tif"), "100,000,000 pixels"),
    "tiff of 30,000": (
        "folder", lambda p: class_folder(p, tiff(30_000, 16), "tif"), "900000000 pixels"),
    "jpeg of 65,500": (
        "folder", lambda p: class_folder(p, jpeg(65_500), "jpg"), "4,290,250,000 pixels"),
    "jpeg of 10,000": (
        "folder", lambda p: class_folder(p, jpeg(10_000), "jpg"), "100,000,000 pixels"),
    "avif of 10,000": (
        "folder", lambda p: class_folder(p, said_to_be("AVIF", 64, 10_000), "avif"),
        "100,000,000 pixels"),
    "avif of more than it says": (
        "folder", lambda p: class_folder(p, said_to_be("AVIF", 6_000, 16), "avif"), "opened"),
    "jpeg 2000 of 10,000": (
        "folder", lambda p: class_folder(p, said_to_be("JPEG2000", 64, 10_000), "jp2"),
        "100,000,000 pixels"),
    "jpeg 2000 of more than it says": (
        "folder", lambda p: class_folder(p, said_to_be("JPEG2000", 3_000, 16), "jp2"),
        "broken data stream"),
    "zip with a huge member": (
        "folder", lambda p: zipped(p, [bytes(250_000_000)], compresslevel=1), "unpack to 250"),
    "zip with many members": ("folder", shared_members, "50,000 files"),
    "tar with a huge label": ("tar", endless_label, "2,000,000,000 bytes"),
    "a pipe as an archive": ("folder", lambda p: pipe(p.with_suffix(".zip")), NO_FILE),
    "a pipe in a folder": ("folder", lambda p: pipe(p, "a/0.png"), "no images"),
    "a pipe as parquet": ("parquet", lambda p: pipe(p, "0.parquet"), NO_FILE),
    "a device as a table": ("list", lambda p: device(p.with_suffix(".csv")), NO_FILE),
    "prediction of a device": ("predict", lambda p: "/dev/zero", NO_FILE),
    "prediction of a pipe": ("predict", pipe, NO_FILE),
    "prediction of a folder with a pipe": ("predict", lambda p: pipe(p, "0.png"), NO_FILE),
    "prediction of a bomb": (
        "predict", lambda p: class_folder(p, BIG, "png"), "169,000,000 pixels"),
    "an answer without end": ("list", "/endless.csv", "bytes and more:"),
    "a packed answer": ("list", "/packed.csv", "bytes and more:"),
    # Images of many frames, pages and words
    "png of 20 frames of 3,000": (
        "folder", lambda p: class_folder(p, apng(3_000, 20), "png"), "opened"),
    "gif of 5,000 frames": (
        "folder", lambda p: class_folder(p, frames("GIF", 16, 5_000), "gif"), "opened"),
    "webp of 2,000 frames": (
        "folder", lambda p: class_folder(p, frames("WEBP", 16, 2_000), "webp"), "opened"),
    "tiff of 2,000 pages": (
        "folder", lambda p: class_folder(p, pages(2_000), "tif"), "opened"),
    "tiff that follows itself": ("folder", lambda p: class_folder(p, pages(0), "tif"), "opened"),
    "png of many words": (
        "folder", lambda p: class_folder(p, text_png(b"zTXt"), "png"), "too large"),
    "png with a huge profile": (
        "folder", lambda p: class_folder(p, text_png(b"iCCP"), "png"), "too large"),
    "bmp of 60,000": ("folder", lambda p: class_folder(p, bmp(60_000), "bmp"), "pixels"),
    "ppm of 60,000": (
        "folder", lambda p: class_folder(p, b"P6 60000 60000 255 ", "ppm"), "pixels"),
    # Archives
    "zip in a zip": ("folder", within, "no images"),
    "zip whose member is larger than said": ("folder", larger_than_said, "101 bytes, it had 100"),
    "tar with a hole of eight gigabytes": ("folder", sparse, "no images"),
    "tar that is packed as a whole": (
        "folder",
        lambda p: holding(p, ".tar.gz", zlib.compress(bytes(4 * 10**8), 1, wbits=31)),
        "is compressed: to read an image"),
    # Tables
    "csv of one line": (
        "list", lambda p: holding(p, ".csv", b"path,", 2 * 10**9), "at most 1,074 MB are read"),
    "csv of a field of 60 MB": (
        "list", lambda p: holding(p, ".csv", b"path\n", 60_000_000), "field larger"),
    "csv with a million columns": (
        "list", lambda p: holding(p, ".csv", b"path," * 10**6), "no rows"),
    "txt of 60 million empty lines": (
        "list", lambda p: holding(p, ".txt", b"\n" * 60_000_000), "no rows"),
    "packed csv": (
        "list",
        lambda p: holding(p, ".gz", zlib.compress(bytes(4 * 10**8), 1, wbits=31)), "is no table"),
    "parquet of a hundred million labels": (
        "list",
        lambda p: rows(p, pa.table({"path": pa.nulls(10**8)})), "that unpack to"),
    "parquet of lists in lists": (
        "parquet",
        lambda p: rows(p, pa.table({"image": [[[b""] * 10**6]], "label": [0]})),
        "not encoded images"),
    "parquet with a footer of two gigabytes": (
        "parquet",
        lambda p: holding(p, ".parquet", b"PAR1" + struct.pack("<I", 2**31 - 1) + b"PAR1"),
        "cannot be read"),
    # JSON
    "json nested without end": (
        "json", lambda p: holding(p, ".json", b"[" * 8_000_000), "nested too deeply"),
    "json of empty objects": (
        "json", lambda p: holding(p, ".json", b"[" + b"{}," * 2_700_000 + b"0]"), "no list"),
    "json of empty lists": (
        "object",
        lambda p: holding(p, ".json", b'{"a": [' + b"[]," * 2_700_000 + b"0]}"), "opened"),
    "json of two gigabytes": (
        "json", lambda p: holding(p, ".json", b"[", 2 * 10**9), "more than 8,388,608 bytes"),
    "json of one number": (
        "json", lambda p: holding(p, ".json", b"9" * 8_000_000), "It is no JSON"),
    "a device as json": ("json", lambda p: device(p.with_suffix(".json")), "no plain file"),
    "a pipe as json": ("json", lambda p: pipe(p.with_suffix(".json")), "no plain file"),
    "a log of one line": ("log", lambda p: holding(p, ".jsonl", b"{", 4 * 10**9), "opened 0"),
    "a log of deep lines": (
        "log", lambda p: holding(p, ".jsonl", (b"[" * 10**6 + b"\n") * 8), "opened 0"),
    "a pipe as a log": ("log", lambda p: pipe(p.with_suffix(".jsonl")), "opened 0"),
    "orders of a device": ("orders", lambda p: device(p.with_suffix(".jsonl")), "opened 0"),
    "a status of objects": (
        "status",
        lambda p: run_folder(p, "status.json", '{"a": [' + "{}," * 2_700_000 + "0]}"), "damaged"),
    # Weights
    "a student of a billion classes": (
        "student", lambda p: student(p, num_classes=10**9), "cannot be read"),
    "a student of deep words": (
        "student", lambda p: student(p, more=json.loads("[" * 900 + "]" * 900)), "too deeply"),
    "weights with a header of an exabyte": (
        "weights", lambda p: headed(p, b"{}", 2**60), "header too large"),
    "weights with a header of 90 MB": (
        "weights", lambda p: headed(p, b"{}" + b" " * 90_000_000), "does not fit"),
    "weights of a terabyte": (
        "weights",
        lambda p: headed(p, b'{"a":{"dtype":"F32","shape":[250000000000],'
                         b'"data_offsets":[0,1000000000000]}}'), "cannot be read"),
    "weights that are packed": ("weights", compressed_weights, "unpack to 400,000"),
    # Configs, and what other processes say
    "yaml of aliases": (
        "config",
        lambda p: holding(p, ".yaml", "".join(
            f"a{k}: &a{k} [{', '.join([f'*a{k - 1}'] * 9 if k else ['x'] * 9)}]\n"
            for k in range(10)).encode()), "data: is missing"),
    "yaml nested without end": (
        "config", lambda p: holding(p, ".yaml", b"[" * 100_000), "brackets are open"),
    "yaml of two gigabytes": (
        "config", lambda p: holding(p, ".yaml", b"a: ", 2 * 10**9), "longer than 131,072"),
    "a device as a config": ("config", lambda p: device(p.with_suffix(".yaml")), "is no config"),
    "a pipe as a config": ("config", lambda p: pipe(p.with_suffix(".yaml")), "is no config"),
    "a message nested without end": (
        "packed", lambda p: holding(p, ".bin", b"\x91" * 10**6), "This is no"),
    "a message of four billion numbers": (
        "packed", lambda p: holding(p, ".bin", b"\xdd\xff\xff\xff\xff"), "This is no"),
    "a frame nested without end": (
        "wire",
        lambda p: holding(p, ".bin", struct.pack("<4sIQ", b"kdl1", 16_000, 0) + b"[" * 16_000),
        "too deeply"),
    "a frame of an exabyte": (
        "wire", lambda p: holding(p, ".bin", struct.pack("<4sIQ", b"kdl1", 2, 2**60) + b"{}"),
        "at most 10000"),
    "a frame of a header without end": (
        "wire", lambda p: holding(p, ".bin", struct.pack("<4sIQ", b"kdl1", 2**31, 0)), "begins"),
}  # fmt: skip


WAYS = dict.fromkeys(("folder", "list", "parquet", "tar"), ("encoded", "decoded"))
WAYS["predict"] = ("once", "again")


@pytest.fixture(scope="module")
def answers(site, tmp_path_factory):
    """Answers to the bombs: words, bytes of memory and disk, bytes that are left on the disk."""
    folder = tmp_path_factory.mktemp("bombs")
    bombs = {}
    for number, (name, (kind, make, _)) in enumerate(BOMBS.items()):
        url = f"http://127.0.0.1:{site.server_port}"
        place = url + make if isinstance(make, str) else make(folder / f"{number}")
        for way in WAYS.get(kind, ("",)):
            bombs[f"{name} {way}"] = kind, place, way
    home = str(folder / "home")
    done = subprocess.run(
        [sys.executable, "-c", OPEN, home],
        env={**os.environ, "KDLAB_HOME": home},
        input=json.dumps(bombs),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return dict(map(json.loads, done.stdout.splitlines()))


@pytest.mark.processes
@pytest.mark.slow("a Python with torch, and 77 bombs opened once or twice")
@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_is_refused_or_held(answers, name):
    measured = {
        key: figures for key, figures in answers.items() if key.startswith(f"{name} ")
    }
    assert measured
    for answer, memory, disk, left in measured.values():
        assert BOMBS[name][2] in answer
        assert memory < MEMORY, f"{memory / 1e6:,.0f} MB of memory"
        assert max(disk, left) < DISK, f"{disk / 1e6:,.0f} MB of disk"


@pytest.fixture
def asked(site, tmp_path, monkeypatch):
    """Requests that the server got in this test."""
    monkeypatch.setenv("KDLAB_HOME", str(tmp_path))
    monkeypatch.setattr(remote, "_WAITS_S", ())
    fsspec.filesystem("http").clear_instance_cache()
    site.asked.clear()
    return site.asked


@pytest.mark.parametrize("name", ["leaves", "leaves-too"])
def test_a_redirect_to_another_host_is_refused_with_both_names(site, asked, name):
    at = f"127.0.0.1:{site.server_port}"
    with pytest.raises(DataError, match="to another host") as refused:
        ImageFolder(root=f"http://{at}/{name}.zip").load()
    for host in (at, f"http://localhost:{site.server_port}/photos.zip"):
        assert host in str(refused.value)
    with pytest.raises(DataError, match="to another host"):  # of bytes, too
        remote.RemoteHolder(f"http://{at}/{name}.zip", [10, 0]).part(0, 10)
    assert set(asked) == {f"{at}/{name}.zip"}


def test_a_redirect_on_the_same_host_is_followed(site, asked):
    at = f"127.0.0.1:{site.server_port}"
    with pytest.raises(DataError, match="does not exist"):
        ImageFolder(root=f"http://{at}/stays.zip").load()
    assert set(asked) == {f"{at}/stays.zip", f"{at}/photos.zip"}


def test_a_large_photo_is_one_by_its_bytes():
    with pytest.raises(DataError, match="100,000,000 pixels in 5,000"):
        head(jpeg(10_000), 5_000)
    assert head(jpeg(10_000), 5_000_000).height == 10_000


def test_images_wait_for_room_and_one_always_has_some():
    room, begun = decode._MemoryLimit(), threading.Event()
    raw, pixels = b"\x89P", decode._TOGETHER // decode._PIXEL

    def wait_for_room():
        with room.reserve(raw, pixels):
            begun.set()

    with room.reserve(raw, pixels):
        waits = threading.Thread(target=wait_for_room)
        waits.start()
        assert not begun.wait(0.05)
    waits.join()
    assert begun.is_set()
    with pytest.raises(ZeroDivisionError), room.reserve(raw, pixels):
        raise ZeroDivisionError
    with room.reserve(raw, pixels):
        assert room._taken == decode._TOGETHER
    assert room._taken == 0
