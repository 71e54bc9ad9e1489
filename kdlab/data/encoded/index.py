"""Where each image of a set lies: an index, made once and kept.

Its columns are arrays in a sealed folder, memory-mapped: a million images open in a moment, and all
processes of a machine share one copy. It holds as long as what it was made from looks as it did:
files by size and time, folders by the time of each directory, URLs by what their server says of
them, once a run. That a file was changed where it lies is found when it is read (store.py).
"""

import hashlib
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kdlab.codec import MessageError, from_builtins, to_builtins
from kdlab.config.seal import DamagedFolder, check, seal
from kdlab.data.encoded import remote
from kdlab.data.encoded.decode import Head
from kdlab.data.encoded.holders import read_stamp
from kdlab.data.encoded.inventory import Inventory
from kdlab.data.splits import NO_LABEL, TEST, TRAIN, VALIDATION

_VERSION = 3
_COLUMNS = {
    "holder": np.uint16,  # number of the folder or archive
    "start": np.int64,  # byte in the archive, in a zip of its header; -1 is a file of its own
    "packed": np.int64,  # bytes there
    "size": np.int64,  # bytes unpacked
    "crc": np.int64,  # CRC-32 of these; -1 is unknown
    "label": np.int32,  # number of its class; -1 is none
    "split": np.uint8,  # of `images.py`; 255 is none
    "height": np.int32,  # upright; 0 is not looked at yet, -1 cannot be decoded
    "width": np.int32,
    "quick": np.bool_,  # of `decode.Head`
    "name_end": np.int64,  # byte of `names.bin` where its name ends
}
_CONTENT = ("size", "crc", "label", "split", "name_end", "names")  # and not where it lies
NO_SPLIT = 255


@dataclass(frozen=True, slots=True)
class IndexFacts:
    """Facts of an index, stored in its seal."""

    version: int
    holders: tuple[str, ...]
    looks: dict[str, list[int]]  # a key of JSON: stamps, of `Inventory`
    classes: tuple[str, ...]
    broken: tuple[str, ...]  # images that cannot be decoded, with the reason
    digest: str  # of names, sizes, checksums and labels, 16 hex digits
    notes: tuple[str, ...]  # describe every file
    splits: tuple[str, ...]  # names that set a split


@dataclass(frozen=True, slots=True)
class Index:
    """The columns: a row for each image, in the order of names."""

    facts: IndexFacts
    holder: NDArray[np.uint16]
    start: NDArray[np.int64]
    packed: NDArray[np.int64]
    size: NDArray[np.int64]
    crc: NDArray[np.int64]
    label: NDArray[np.int32]
    split: NDArray[np.uint8]
    height: NDArray[np.int32]
    width: NDArray[np.int32]
    quick: NDArray[np.bool_]
    name_end: NDArray[np.int64]
    names: NDArray[np.uint8]

    def __len__(self) -> int:
        return len(self.label)

    def name(self, row: int) -> str:
        begin = int(self.name_end[row - 1]) if row else 0
        raw = self.names[begin : int(self.name_end[row])].tobytes()
        return raw.decode("utf-8", "surrogateescape")

    def head(self, row: int) -> Head | None:
        """Size of an image as it was indexed; None where it was not decoded, or cannot be."""
        height = int(self.height[row])
        if height <= 0:
            return None
        return Head(height, int(self.width[row]), bool(self.quick[row]))


def write_index(
    folder: Path, inventory: Inventory, heads: Sequence[Head | str | None] | None = None
) -> None:
    """Write the index of an inventory; `folder` is created, or replaced.

    Args:
        folder: of the index.
        inventory: the images.
        heads: of each image in their order, or the reason why it cannot be decoded.
    """
    seen = heads or [None] * len(inventory.images)
    both = sorted(
        zip(inventory.images, seen, strict=True), key=lambda b: (b[0].name, b[0].holder)
    )
    classes = inventory.classes
    if classes is None:
        classes = in_order({row.label for row, _ in both if row.label is not None})
    number = {None: NO_LABEL} | {name: k for k, name in enumerate(classes)}
    raw_names = [row.name.encode("utf-8", "surrogateescape") for row, _ in both]
    ends = accumulate(map(len, raw_names))
    part = {None: NO_SPLIT} | {split: split for split in (TRAIN, VALIDATION, TEST)}
    rows = (
        (row.holder, *row[2:6], number[row.label], part[row.split], *_looked_at(head), end)
        for (row, head), end in zip(both, ends, strict=True)
    )
    table = np.fromiter(rows, np.dtype(list(_COLUMNS.items())), len(both))
    columns = {name: np.ascontiguousarray(table[name]) for name in _COLUMNS}
    columns["names"] = np.frombuffer(b"".join(raw_names), np.uint8)
    digest = hashlib.sha256("\n".join(classes).encode("utf-8", "surrogateescape"))
    for name in _CONTENT:
        digest.update(columns[name].tobytes())
    facts = IndexFacts(
        _VERSION,
        tuple(inventory.holders),
        inventory.stamps,
        classes,
        tuple(head for _, head in both if isinstance(head, str)),
        digest.hexdigest()[:16],
        inventory.notes(),
        tuple(sorted(inventory.splits, key=lambda name: (inventory.splits[name], name))),
    )
    keep_arrays(folder, columns, to_builtins(facts))


def keep_arrays(
    folder: Path, arrays: Mapping[str, NDArray[Any]], facts: Mapping[str, object]
) -> None:
    """Seal a folder of arrays, each as NAME.npy; what was there before goes."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)
    seal(folder, (f"{name}.npy" for name in arrays), facts)


def _looked_at(seen: Head | str | None) -> tuple[int, int, bool]:
    """Height, width and whether it is quick; see `_COLUMNS`."""
    return seen if isinstance(seen, Head) else (0 if seen is None else -1, 0, False)


def in_order(classes: Iterable[str]) -> tuple[str, ...]:
    """Sorted; numbers by their size."""
    names = sorted(classes)
    if all(name.isdecimal() for name in names):
        names.sort(key=int)
    return tuple(names)


def open_index(folder: Path, *, verify: bool) -> Index | None:
    """The index in a folder; None where it is damaged, or its sources have changed.

    Args:
        folder: that `write_index` filled.
        verify: check hashes and not sizes alone, and the stamps of URLs: once a run.
    """
    try:
        facts = from_builtins(IndexFacts, check(folder, hashes=verify))
    except (DamagedFolder, MessageError):
        return None
    if facts.version != _VERSION:
        return None
    for place, before in facts.looks.items():
        try:
            compares = verify or not remote.is_url(place)
            if compares and read_stamp(place) != before:
                return None
        except OSError:  # the source is gone
            return None
    return read_index(folder, facts)


def read_index(folder: Path, facts: IndexFacts) -> Index:
    columns = {
        name: np.load(folder / f"{name}.npy", mmap_mode="r").view(np.ndarray)
        for name in (*_COLUMNS, "names")
    }
    return Index(facts, **columns)
