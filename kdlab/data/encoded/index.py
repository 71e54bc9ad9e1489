"""Where each image of a set lies: an index, made once and kept.

Its columns are arrays in a sealed folder, memory-mapped: a million images open in a moment, and all
processes of a machine share one copy. It holds as long as its holders look as they did: archives
by size and time, folders by the time of each directory. That a file was changed where it lies is
found when it is read (store.py).
"""

import hashlib
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kdlab.config.seal import Damaged, check, seal
from kdlab.messages import MessageError, plain, typed

_VERSION = 1
_COLUMNS = {
    "holder": np.uint16,  # number of the folder or archive
    "start": np.int64,  # byte in the archive; -1 is a file of its own
    "packed": np.int64,  # bytes there
    "size": np.int64,  # bytes unpacked
    "crc": np.int64,  # CRC-32 of these; -1 is unknown
    "label": np.int32,  # number of its class; -1 is none
    "split": np.uint8,  # of `images.py`; 255 is none
    "name_end": np.int64,  # byte of `names.bin` where its name ends
}
NO_SPLIT = 255
NO_LABEL = -1


class FoundImage(NamedTuple):
    """One encoded image, as a walk finds it."""

    holder: int
    name: str  # path inside the holder
    start: int
    packed: int
    size: int
    crc: int
    label: str | None
    split: int | None


@dataclass(frozen=True, slots=True)
class IndexFacts:
    """What stands beside the columns."""

    version: int
    looks: dict[str, dict[str, list[int]]]  # holder -> path in it -> size, time in ns
    classes: tuple[str, ...]
    digest: str  # of names, sizes, checksums and labels, 16 hex digits


@dataclass(frozen=True, slots=True)
class Index:
    """The columns, one row an image, in the order of their names."""

    facts: IndexFacts
    holder: NDArray[np.uint16]
    start: NDArray[np.int64]
    packed: NDArray[np.int64]
    size: NDArray[np.int64]
    crc: NDArray[np.int64]
    label: NDArray[np.int32]
    split: NDArray[np.uint8]
    name_end: NDArray[np.int64]
    names: NDArray[np.uint8]

    def __len__(self) -> int:
        return len(self.label)

    def name(self, row: int) -> str:
        begin = int(self.name_end[row - 1]) if row else 0
        raw = self.names[begin : int(self.name_end[row])].tobytes()
        return raw.decode("utf-8", "surrogateescape")

    @property
    def holders(self) -> list[Path]:
        return [Path(holder) for holder in self.facts.looks]


def write_index(
    folder: Path, found: Iterable[FoundImage], looks: dict[str, dict[str, list[int]]]
) -> None:
    """Write what a walk has found; `folder` is made, or replaced.

    Args:
        folder: of the index.
        found: the images.
        looks: by holder, in the order of their numbers: what to look at later, and how it is now
            (`look`); of an archive itself (""), of a folder its directories.
    """
    rows = sorted(found, key=lambda f: (f.name, f.holder))
    classes = tuple(sorted({row.label for row in rows if row.label is not None}))
    number = {name: k for k, name in enumerate(classes)}
    raw_names = [row.name.encode("utf-8", "surrogateescape") for row in rows]
    label = [NO_LABEL if row.label is None else number[row.label] for row in rows]
    split = [NO_SPLIT if row.split is None else row.split for row in rows]
    columns: dict[str, Sequence[int] | NDArray[np.int64]] = {
        "holder": [row.holder for row in rows],
        "start": [row.start for row in rows],
        "packed": [row.packed for row in rows],
        "size": [row.size for row in rows],
        "crc": [row.crc for row in rows],
        "label": label,
        "split": split,
        "name_end": np.cumsum([len(name) for name in raw_names], dtype=np.int64),
    }
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    digest = hashlib.sha256("\n".join(classes).encode("utf-8", "surrogateescape"))
    for name, kind in _COLUMNS.items():
        values = np.asarray(columns[name], kind)
        np.save(folder / f"{name}.npy", values)
        if name in ("size", "crc", "label", "split", "name_end"):  # not where it lies
            digest.update(values.tobytes())
    names = np.frombuffer(b"".join(raw_names), np.uint8)
    digest.update(names.tobytes())
    np.save(folder / "names.npy", names)
    facts = IndexFacts(_VERSION, looks, classes, digest.hexdigest()[:16])
    seal(folder, [f"{name}.npy" for name in (*_COLUMNS, "names")], plain(facts))


def look(path: Path) -> list[int]:
    """What changes with an archive, or with the entries of a directory."""
    status = path.stat()
    return [status.st_size if path.is_file() else 0, status.st_mtime_ns]


def open_index(folder: Path, holders: Sequence[Path], *, verify: bool) -> Index | None:
    """The index there, if it is whole and its holders look as they did.

    Args:
        folder: that `write_index` filled.
        holders: folders and archives of the set, in order.
        verify: check the hashes of its files, and not their sizes alone: once a run.
    """
    try:
        facts = typed(IndexFacts, check(folder, hashes=verify))
    except (Damaged, MessageError):
        return None
    if facts.version != _VERSION or list(facts.looks) != [str(h) for h in holders]:
        return None
    for holder, known in facts.looks.items():
        for inner, before in known.items():
            try:
                if look(Path(holder) / inner) != before:
                    return None
            except OSError:  # it is gone
                return None
    return read_index(folder, facts)


def read_index(folder: Path, facts: IndexFacts) -> Index:
    columns = {
        name: np.load(folder / f"{name}.npy", mmap_mode="r").view(np.ndarray)
        for name in (*_COLUMNS, "names")
    }
    return Index(facts, **columns)
