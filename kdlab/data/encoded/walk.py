"""What images a folder, a zip or a tar file holds, without unpacking any."""

import os
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from kdlab.data.encoded.index import FoundImage, look
from kdlab.data.splits import TEST, TRAIN, VALIDATION
from kdlab.errors import DataError

IMAGES = frozenset(
    (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".tif", ".tiff", ".gif", ".ppm")
)
SPLITS = {
    "train": TRAIN, "training": TRAIN, "val": VALIDATION, "valid": VALIDATION,
    "validation": VALIDATION, "test": TEST,
}  # fmt: skip
_TARS = (".tar", ".tar.gz", ".tgz")
_LOCAL_HEADER = 30  # bytes, before name and extra field of a member of a zip file
_ENCRYPTED = 1  # bit of a member's flags


def walk(root: Path, number: int) -> tuple[list[FoundImage], dict[str, list[int]]]:
    """The images of one holder, and what to look at to see whether it has changed.

    Args:
        root: a folder, a zip or a tar file: [train|val|test]/CLASS/image.
        number: of the holder.

    Raises:
        DataError: it is missing, of no known kind, damaged, or holds no such image.
    """
    try:
        if root.is_dir():
            found, looks = _folder(root, number)
        elif root.is_file():
            found, looks = list(_archive(root, number)), {"": look(root)}
        else:
            raise DataError(
                f"{root} does not exist. `root` must be a folder with one folder per class, or "
                "a zip or tar file of one."
            )
    except OSError as error:
        raise DataError(f"{root} cannot be read: {error}.") from error
    if not found:
        raise DataError(
            f"{root} holds no images in class folders. Expected CLASS/image.png or "
            f"train/CLASS/image.png, with one of {', '.join(sorted(IMAGES))}."
        )
    return found, looks


def _folder(root: Path, number: int) -> tuple[list[FoundImage], dict[str, list[int]]]:
    """Links to folders are followed, once each."""
    found, looks, seen = [], dict[str, list[int]](), set[tuple[int, int]]()
    waiting = [""]
    while waiting:
        inner = waiting.pop()
        status = (root / inner).stat()
        if (status.st_dev, status.st_ino) in seen:
            continue  # a link to a folder above it
        seen.add((status.st_dev, status.st_ino))
        looks[inner] = look(root / inner)
        with os.scandir(root / inner) as entries:
            for entry in entries:
                name = f"{inner}/{entry.name}" if inner else entry.name
                if entry.is_dir():
                    waiting.append(name)
                elif is_image(name) and entry.is_file():
                    size = entry.stat().st_size
                    found.append(
                        FoundImage(number, name, -1, size, size, -1, *said_by(name))
                    )
    return found, looks


def _archive(root: Path, number: int) -> Iterator[FoundImage]:
    try:
        if root.suffix.lower() == ".zip":
            yield from _zip(root, number)
        elif root.name.lower().endswith(_TARS):
            yield from _tar(root, number)
        else:
            raise DataError(
                f"{root} is a file of no kind that is known here: .zip, .tar, or a folder."
            )
    except (zipfile.BadZipFile, tarfile.TarError, EOFError) as error:
        kind = "zip" if root.suffix.lower() == ".zip" else "tar"
        raise DataError(f"{root} is not a readable {kind} file: {error}.") from error


def _zip(root: Path, number: int) -> Iterator[FoundImage]:
    with zipfile.ZipFile(root) as archive, root.open("rb") as raw:
        for member in archive.infolist():
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
            yield FoundImage(
                number,
                member.filename,
                _data_of(raw, member.header_offset),
                member.compress_size,
                member.file_size,
                member.CRC,
                *said_by(member.filename),
            )


def _data_of(raw: BinaryIO, header: int) -> int:
    """Where the bytes of a member begin; its own header knows, the central one does not."""
    raw.seek(header)
    head = raw.read(_LOCAL_HEADER)
    if len(head) < _LOCAL_HEADER or head[:4] != b"PK\x03\x04":
        raise zipfile.BadZipFile(f"no member begins at byte {header:,}")
    name, extra = (int.from_bytes(head[at : at + 2], "little") for at in (26, 28))
    return header + _LOCAL_HEADER + name + extra


def _tar(root: Path, number: int) -> Iterator[FoundImage]:
    with root.open("rb") as raw:
        if raw.read(2) == b"\x1f\x8b":
            raise DataError(
                f"{root} is compressed as a whole: an image in its middle could only be had by "
                f"unpacking all before it. Unpack it once: gunzip {root}"
            )
    with tarfile.open(root, "r:") as archive:
        for member in archive:
            if member.isfile() and not member.issparse() and is_image(member.name):
                name = member.name.removeprefix("./")
                size = member.size
                yield FoundImage(
                    number, name, member.offset_data, size, size, -1, *said_by(name)
                )
            archive.members = []  # type: ignore[attr-defined]  # it keeps them all


def is_image(name: str) -> bool:
    """An image in a class folder; nothing that a system or an editor left."""
    head, slash, last = name.rpartition("/")
    suffix = os.path.splitext(last)[1].lower()
    left = last.startswith(".") or head.startswith("__MACOSX")
    return bool(slash and head and suffix in IMAGES and not left)


def said_by(name: str) -> tuple[str, int | None]:
    """Class and split that a path says: [train|val|test]/CLASS/image."""
    parts = name.rsplit("/", 3)
    above = parts[-3].lower() if len(parts) > 2 else ""
    return parts[-2], SPLITS.get(above.rpartition("/")[2])
