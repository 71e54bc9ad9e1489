"""Find the images of a folder, a zip or a tar file, without unpacking any."""

import os
import tarfile
import zipfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import BinaryIO

from kdlab.data.encoded import remote
from kdlab.data.encoded.formats import hidden, readable, suffix_of
from kdlab.data.encoded.holders import open_holder, read_stamp, reading
from kdlab.data.encoded.inventory import HIDDEN, FoundImage, Inventory
from kdlab.data.encoded.layout import SPLITS, lay_out, split_of
from kdlab.errors import DataError

TARS = (".tar", ".tar.gz", ".tgz")
LOCAL_HEADER = 30  # bytes, before name and extra field of a member of a zip file
_ENCRYPTED = 1  # bit of a member's flags
_TABLES = (".csv", ".tsv", ".parquet")
_WANTED = " `root` must be a folder with one folder per class, or a zip or tar file of one."


def walk(root: str, inventory: Inventory, *, bare: bool = False) -> None:
    """Add the images of a folder, a zip or a tar file.

    Args:
        root: a path or URL.
        inventory: receives the images.
        bare: do not take class and split from the folders.

    Raises:
        DataError: the root is missing, of an unknown kind, damaged, or holds no such image.
    """
    number, before = len(inventory.holders), len(inventory.images)
    inventory.holders.append(root)
    with reading(root, _WANTED):
        for entry in _entries(root, inventory):
            if is_image(entry[0]):
                inventory.images.append(FoundImage(number, *entry))
            else:
                inventory.leave(entry[0])
    if not bare:
        lay_out(inventory, before)
    if len(inventory.images) == before:
        tables = [suffix for suffix in _TABLES if inventory.others[suffix]]
        hint = f" There is a {tables[0]} file in it: give that." if tables else ""
        raise DataError(
            f"{root} holds no images in class folders: {'; '.join(inventory.notes())}. Expected "
            f"CLASS/image.png or train/CLASS/image.png.{hint}"
        )


Entry = tuple[str, int, int, int, int]  # name, start, packed, size, CRC


def _entries(root: str, inventory: Inventory) -> Iterator[Entry]:
    if root.lower().endswith((*TARS, ".zip")):
        inventory.stamps[root] = read_stamp(root)
        return _archive(root, inventory.stamps[root])
    if remote.is_url(root):
        remote.refuse_web_folder(root)
        inventory.stamps[root] = read_stamp(root)
        return _remote_folder(root)
    if Path(root).is_dir():
        return folder_entries(root, inventory)
    if Path(root).exists():
        raise DataError(
            f"{root} is not a supported data set file: give a .zip, a .tar, or a folder."
        )
    raise FileNotFoundError(root)


def folder_entries(root: str, inventory: Inventory) -> Iterator[Entry]:
    """All files below a folder. Links to folders come last, and each is followed once."""
    top, seen = Path(root).resolve(), set[tuple[int, int]]()
    waiting, links = [""], list[str]()
    while waiting or links:
        linked = not waiting
        links.sort(reverse=linked)
        inner = links.pop() if linked else waiting.pop()
        status = os.stat(os.path.join(root, inner))
        known = (status.st_dev, status.st_ino) in seen
        if known or (linked and _leads_out(root, inner, top, inventory) is None):
            inventory.put(
                "not followed, a link to a folder that is in it or holds it", inner
            )
            continue
        seen.add((status.st_dev, status.st_ino))
        inventory.stamps[os.path.join(root, inner)] = read_stamp(os.path.join(root, inner))
        with os.scandir(os.path.join(root, inner)) as entries:
            for entry in entries:
                name = f"{inner}/{entry.name}" if inner else entry.name
                link = entry.is_symlink()  # of which a loop is an error to `is_dir`
                if os.path.isdir(entry.path) if link else entry.is_dir():
                    if hidden(name) is not None:
                        inventory.put(HIDDEN, f"{name}/", _files_below(entry.path))
                    else:
                        (links if link else waiting).append(name)
                elif os.path.isfile(entry.path) if link else entry.is_file():
                    if link:
                        _leads_out(root, name, top, inventory)
                    size = entry.stat().st_size
                    yield name, -1, size, size, -1
                else:
                    inventory.put(
                        "left out, a link that leads nowhere or a pipe or a device", name
                    )


def _leads_out(root: str, name: str, top: Path, inventory: Inventory) -> bool | None:
    """Note and return whether a link leads out of `top`; None: to a folder that contains `top`."""
    target = Path(root, name).resolve()
    if top.is_relative_to(target):
        return None
    if out := not target.is_relative_to(top):
        inventory.put("followed, a link out of the folder", f"{name} -> {target}")
    return out


def _files_below(folder: str) -> int:
    return sum(len(names) for _, _, names in os.walk(folder))


def files_in(
    root: str, inventory: Inventory, suffixes: tuple[str, ...]
) -> Iterator[tuple[str, str]]:
    """Each file with these suffixes at or below a root, in order, with its name below it.

    Images that the caller adds before the next file get the split in this file's name.

    Raises:
        DataError: the root is missing or cannot be read, or no image was added.
    """
    before = len(inventory.images)
    with reading(root):
        if remote.is_url(root) or not Path(root).is_dir():
            inventory.stamps[root] = read_stamp(root)
            yield root, root.rpartition("/")[2]
        else:
            yield from _files_of(root, inventory, suffixes)
    if len(inventory.images) == before:
        kinds = " or ".join(suffixes)
        notes = "; ".join(inventory.notes())
        raise DataError(f"{root} holds no images in {kinds} files: {notes}.")


def _files_of(
    root: str, inventory: Inventory, suffixes: tuple[str, ...]
) -> Iterator[tuple[str, str]]:
    for name in sorted(name for name, *_ in folder_entries(root, inventory)):
        if hidden(name) is None and name.lower().endswith(suffixes):
            place = os.path.join(root, name)
            inventory.stamps[place], first = read_stamp(place), len(inventory.images)
            yield place, name
            split_name = split_of(name)  # of the images that the caller has added
            if split_name is not None:
                inventory.put_in(SPLITS[split_name.lower()], first, split_name)
        else:
            inventory.leave(name)


def _remote_folder(root: str) -> Iterator[Entry]:
    files = remote.listing(root)
    bare = root.split("://", 1)[1].strip("/")
    for place, facts in files.items():
        inside = place.split("://", 1)[-1].strip("/").removeprefix(bare).strip("/")
        size = int(str(facts.get("size") or 0))
        yield inside, -1, size, size, -1


def _archive(root: str, seen: list[int]) -> Iterator[Entry]:
    with closing(open_holder(root, seen)) as holder, holder.stream() as raw:
        is_zip = root.lower().endswith(".zip")
        yield from _zip(root, raw) if is_zip else tar_entries(root, raw)


def _zip(root: str, raw: BinaryIO) -> Iterator[Entry]:
    raw.read(1)  # raises OSError where nothing can be read; zipfile would say "no zip file"
    with zipfile.ZipFile(raw) as archive:
        members = archive.infolist()
        needed = sum(m.compress_size + LOCAL_HEADER + len(m.filename) for m in members)
        if needed > raw.seek(0, os.SEEK_END):
            raise DataError(
                f"{root} has fewer bytes than its {len(members):,} files together, {needed:,}: "
                "some share bytes, as no archive of images does. Pack the images anew."
            )
        for member in members:
            if member.is_dir():
                continue
            if is_image(member.filename) and (
                member.flag_bits & _ENCRYPTED
                or member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
            ):
                raise DataError(
                    f"{root}: {member.filename} is encrypted, or packed by another method "
                    "than deflate. Pack the images anew: zip -0 -r images.zip FOLDER"
                )
            sizes = member.compress_size, member.file_size
            yield member.filename, member.header_offset, *sizes, member.CRC


def data_begin(raw: bytes) -> int | None:
    """Bytes from a zip member's header to its data, which the central directory does not have."""
    if len(raw) < LOCAL_HEADER or raw[:4] != b"PK\x03\x04":
        return None
    name, extra = (int.from_bytes(raw[at : at + 2], "little") for at in (26, 28))
    return LOCAL_HEADER + name + extra


def tar_entries(root: str, raw: BinaryIO) -> Iterator[Entry]:
    """All regular files of a tar archive.

    Raises:
        DataError: the archive is compressed.
        tarfile.TarError: it is damaged.
    """
    if raw.read(2) == b"\x1f\x8b":
        raise DataError(
            f"{root} is compressed: to read an image in its middle, everything before it "
            f"must be unpacked. Decompress it once: gunzip {root}"
        )
    raw.seek(0)
    with tarfile.open(fileobj=raw, mode="r:") as archive:
        for member in archive:
            if member.isfile() and not member.issparse():
                name, size = member.name.removeprefix("./"), member.size
                yield name, member.offset_data, size, size, -1
            archive.members = []  # type: ignore[attr-defined]  # tarfile would keep them all


def is_image(name: str) -> bool:
    """Return whether a name has an image suffix and is not hidden."""
    return suffix_of(name) in readable() and hidden(name) is None
