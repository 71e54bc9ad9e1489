"""What images a folder, a zip or a tar file holds, without unpacking any."""

import os
import re
import tarfile
import zipfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import BinaryIO

from kdlab.data.encoded import remote
from kdlab.data.encoded.holders import look, opened
from kdlab.data.encoded.index import FoundImage, Inventory
from kdlab.data.splits import TEST, TRAIN, VALIDATION
from kdlab.errors import DataError

IMAGES = frozenset(
    (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".tif", ".tiff", ".gif", ".ppm")
)
SPLITS = {
    "train": TRAIN, "training": TRAIN, "val": VALIDATION, "valid": VALIDATION,
    "validation": VALIDATION, "test": TEST,
}  # fmt: skip
TARS = (".tar", ".tar.gz", ".tgz")
LOCAL_HEADER = 30  # bytes, before name and extra field of a member of a zip file
_ENCRYPTED = 1  # bit of a member's flags

# Class and split of an image's name; None: it is not of the set.
Named = Callable[[str], tuple[str | None, int | None] | None]


def walk(root: str, found: Inventory, named: Named | None = None) -> None:
    """Add the images of a folder, a zip or a tar file.

    Args:
        root: a path or URL; names inside are [train|val|test]/CLASS/image.
        found: gets them.
        named: class and split of a name, None for one that is no image of the set.

    Raises:
        DataError: it is missing, of no known kind, damaged, or holds no such image.
    """
    named = named or of_class_folders
    number, before = len(found.holders), len(found.images)
    found.holders.append(root)
    try:
        if root.lower().endswith((*TARS, ".zip")):
            found.looks[root] = look(root)
            _add(found, number, _archive(root, found.looks[root]), named)
        elif remote.is_url(root):
            remote.refuse_web_folder(root)
            found.looks[root] = look(root)
            _add(found, number, _remote_folder(root), named)
        elif Path(root).is_dir():
            _add(found, number, _folder(Path(root), found), named)
        elif Path(root).exists():
            raise DataError(
                f"{root} is a file of no kind that is known here: .zip, .tar, or a folder."
            )
        else:
            raise FileNotFoundError(root)
    except FileNotFoundError as error:
        raise DataError(
            f"{root} does not exist. `root` must be a folder with one folder per class, or "
            "a zip or tar file of one."
        ) from error
    except OSError as error:
        raise DataError(f"{root} cannot be read: {error}.") from error
    if len(found.images) == before:
        raise DataError(
            f"{root} holds no images in class folders. Expected CLASS/image.png or "
            f"train/CLASS/image.png, with one of {', '.join(sorted(IMAGES))}."
        )


Entry = tuple[str, int, int, int, int]  # name, start, packed, size, CRC


def _add(found: Inventory, number: int, entries: Iterable[Entry], named: Named) -> None:
    for name, start, packed, size, crc in entries:
        if is_image(name) and (said := named(name)) is not None:
            found.images.append(FoundImage(number, name, start, packed, size, crc, *said))


def _folder(root: Path, found: Inventory) -> Iterator[Entry]:
    """Links to folders are followed, once each."""
    seen, waiting = set[tuple[int, int]](), [""]
    while waiting:
        inner = waiting.pop()
        status = (root / inner).stat()
        if (status.st_dev, status.st_ino) in seen:
            continue  # a link to a folder above it
        seen.add((status.st_dev, status.st_ino))
        found.looks[str(root / inner)] = look(root / inner)
        with os.scandir(root / inner) as entries:
            for entry in entries:
                name = f"{inner}/{entry.name}" if inner else entry.name
                if entry.is_dir():
                    waiting.append(name)
                elif is_image(name) and entry.is_file():
                    size = entry.stat().st_size
                    yield name, -1, size, size, -1


def _remote_folder(root: str) -> Iterator[Entry]:
    files = remote.listing(root)
    bare = root.split("://", 1)[1].strip("/")
    for place, facts in files.items():
        inside = place.split("://", 1)[-1].strip("/").removeprefix(bare).strip("/")
        size = int(str(facts.get("size") or 0))
        yield inside, -1, size, size, -1


def _archive(root: str, seen: list[int]) -> Iterator[Entry]:
    kind = "zip" if root.lower().endswith(".zip") else "tar"
    try:
        with closing(opened(root, seen)) as holder, holder.stream() as raw:
            yield from _zip(root, raw) if kind == "zip" else tar_entries(root, raw)
    except (
        *(zipfile.BadZipFile, tarfile.TarError, EOFError),
        *(ValueError, NotImplementedError),  # names and versions of no zip
    ) as error:
        raise DataError(f"{root} is not a readable {kind} file: {error}.") from error


def _zip(root: str, raw: BinaryIO) -> Iterator[Entry]:
    raw.read(1)  # what cannot be read at all is said so; zipfile calls it no zip
    with zipfile.ZipFile(raw) as archive:
        members = archive.infolist()
        whole = sum(one.compress_size + LOCAL_HEADER + len(one.filename) for one in members)
        if whole > raw.seek(0, os.SEEK_END):
            raise DataError(
                f"{root} has fewer bytes than its {len(members):,} files have, {whole:,}: some "
                "share theirs, which no archive of images does. Pack the images anew."
            )
        for member in members:
            if not is_image(member.filename):
                continue
            if member.flag_bits & _ENCRYPTED or member.compress_type not in (
                zipfile.ZIP_STORED,
                zipfile.ZIP_DEFLATED,
            ):
                raise DataError(
                    f"{root}: {member.filename} is encrypted, or packed by another method "
                    "than deflate. Pack the images anew: zip -0 -r images.zip FOLDER"
                )
            sizes = member.compress_size, member.file_size
            yield member.filename, member.header_offset, *sizes, member.CRC


def data_begin(raw: bytes) -> int | None:
    """Bytes from a zip member's header to its data; the central directory does not know."""
    if len(raw) < LOCAL_HEADER or raw[:4] != b"PK\x03\x04":
        return None
    name, extra = (int.from_bytes(raw[at : at + 2], "little") for at in (26, 28))
    return LOCAL_HEADER + name + extra


def tar_entries(root: str, raw: BinaryIO) -> Iterator[Entry]:
    """All files in it.

    Raises:
        DataError: it is compressed as a whole.
        tarfile.TarError: it is damaged.
    """
    if raw.read(2) == b"\x1f\x8b":
        raise DataError(
            f"{root} is compressed as a whole: an image in its middle could only be had by "
            f"unpacking all before it. Unpack it once: gunzip {root}"
        )
    raw.seek(0)
    with tarfile.open(fileobj=raw, mode="r:") as archive:
        for member in archive:
            if member.isfile() and not member.issparse():
                name, size = member.name.removeprefix("./"), member.size
                yield name, member.offset_data, size, size, -1
            archive.members = []  # type: ignore[attr-defined]  # it keeps them all


def is_image(name: str) -> bool:
    """By its suffix; nothing that a system or an editor left."""
    head, _, last = name.rpartition("/")
    suffix = os.path.splitext(last)[1].lower()
    return suffix in IMAGES and not last.startswith(".") and not head.startswith("__MACOSX")


def split_in(place: str) -> int | None:
    """The split that a file's name has in it, such as train-000.tar."""
    words = re.split(r"[^a-z]+", place.rpartition("/")[2].lower())
    return next((SPLITS[word] for word in words if word in SPLITS), None)


def of_class_folders(name: str) -> tuple[str | None, int | None] | None:
    """Class and split that a path says: [train|val|test]/CLASS/image."""
    parts = name.rsplit("/", 3)
    if len(parts) < 2 or not parts[-2]:
        return None
    above = parts[-3].lower() if len(parts) > 2 else ""
    return parts[-2], SPLITS.get(above.rpartition("/")[2])
