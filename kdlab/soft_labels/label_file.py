"""The Offline format: soft labels of some views of each sample, as files.

A label belongs to a view, and a view to (sample id, augmentation seed). The seal
(config/seal.py) holds what a file was written for and is written last: it proves that the file
is complete, and its hashes that the labels are unchanged. A served run may fill a file while it
trains (`GrowingLabels`), with a checksum for each label; once every label is there it is an
ordinary Offline cache. NumPy only, since the reader process imports no torch.
"""

import json
import logging
import os
import zlib
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from kdlab.codec import to_builtins
from kdlab.config.home import home, locked
from kdlab.config.kept import key_of
from kdlab.config.seal import META, DamagedFolder, check, seal, sealed
from kdlab.errors import CacheError
from kdlab.soft_labels.compressed import TopK, expand

if TYPE_CHECKING:  # it imports torch
    from kdlab.soft_labels.source import Samples


_CHECKED_AT_ONCE = 1024  # labels
_MADE_BY = "made_by.npy"  # of each label: the engine that computed it
_ENGINE = np.dtype("S24")
Stored = np.memmap[tuple[int, ...], np.dtype[np.float16 | np.int32]]


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelMeta:
    """Everything the labels depend on: pixels, views, samples and the teacher's weights."""

    data: str  # digest of the pixels
    augment: str  # fingerprint of the augmentation
    ids: str  # hash of the samples' ids
    teacher: str  # fingerprint of network and weights
    views: int  # of each sample
    top_k: int | None  # classes of each label; None is all
    format: int = 1


def meta_for(samples: "Samples", teacher: str, views: int, top_k: int | None) -> LabelMeta:
    key = samples.view_key()
    return LabelMeta(
        data=key["data"],
        augment=key["augment"],
        ids=key_of(samples.train_ids().tobytes()),
        teacher=teacher,
        views=views if samples.augmented else 1,
        top_k=top_k,
    )


def own_folder(meta: LabelMeta) -> Path:
    return home() / "soft_labels" / key_of(json.dumps(to_builtins(meta), sort_keys=True))


def usable(folder: Path, meta: LabelMeta, say: Callable[[str], None]) -> bool:
    """Return whether a complete, unchanged file exists; report and remove a damaged one.

    Raises:
        CacheError: it was written for other facts than `meta`.
    """
    if not sealed(folder):
        return False
    try:
        _refuse_other(folder, check(folder, hashes=False), to_builtins(meta))
        check(folder, hashes=True)
    except DamagedFolder as error:
        say(f"The soft labels in {folder} are damaged ({error}); computing them again.")
        (folder / META).unlink()
        return False
    return True


def _refuse_other(
    folder: Path, stored: Mapping[str, object], wanted: Mapping[str, object]
) -> None:
    differences = [
        f"  {key}: the cache has {stored.get(key)!r}, this run needs {wanted.get(key)!r}"
        for key in sorted({*stored, *wanted})
        if stored.get(key) != wanted.get(key)
    ]
    if differences:
        raise CacheError(
            f"The soft-label cache {folder} cannot be replayed for this run; its labels "
            "belong to other views or another teacher:\n" + "\n".join(differences) + "\n"
            "Choose another soft_labels.path, or leave it out to write a new cache."
        )


def write_meta(folder: Path, meta: LabelMeta) -> None:
    """Write the seal, which marks the file as complete."""
    seal(
        folder,
        [*(f"{name}.npy" for name in _fields_of(meta, 0)), _MADE_BY],
        to_builtins(meta),
    )


def write_made_by(folder: Path, meta: LabelMeta, count: int, engine: str) -> None:
    """Record that one engine computed all labels."""
    np.save(folder / _MADE_BY, np.full((meta.views, count), engine.encode(), _ENGINE))


def made_by(folder: Path) -> dict[str, int]:
    """Number of labels of each engine, most first; empty for files of earlier versions."""
    if not (folder / _MADE_BY).exists():
        return {}
    engines = Counter(np.load(folder / _MADE_BY, mmap_mode="r").ravel().tolist())
    return {name.decode("ascii", "replace"): n for name, n in engines.most_common()}


def _fields_of(meta: LabelMeta, classes: int) -> dict[str, tuple[type, tuple[int, ...]]]:
    """Arrays of the file, with type and shape of one label in each."""
    if meta.top_k is None:
        return {"logits": (np.float16, (classes,))}
    top = (meta.top_k,)
    return {
        "values": (np.float16, top),
        "classes": (np.int32, top),
        "tail": (np.float16, ()),
    }


def arrays(
    folder: Path, count: int, classes: int, meta: LabelMeta, mode: Literal["r", "r+", "w+"]
) -> dict[str, Stored]:
    """The label arrays, memory-mapped; "w+" creates new files and leaves old ones to readers."""
    stored = {}
    for name, (dtype, shape) in _fields_of(meta, classes).items():
        path, full_shape = folder / f"{name}.npy", (meta.views, count, *shape)
        is_new = mode == "w+"
        array = _new(path, dtype, full_shape) if is_new else np.load(path, mmap_mode=mode)
        stored[name] = array
    return stored


def _new(path: Path, dtype: type, shape: tuple[int, ...]) -> Stored:
    path.unlink(missing_ok=True)
    stored: Stored = np.lib.format.open_memmap(path, mode="w+", dtype=dtype, shape=shape)
    with path.open("r+b") as file:  # allocate now: a full disk is no bus error later
        os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
    return stored


def read(
    parts: Mapping[str, Stored], view: int, rows: NDArray[np.int64], classes: int
) -> NDArray[np.float32]:
    """(N, classes) float32 logits of these rows."""
    label = {name: array[view, rows] for name, array in parts.items()}
    if "logits" in label:
        return label["logits"].astype(np.float32)
    return expand(TopK(**label), classes)


class GrowingLabels:
    """A label file that several readers fill while they train; float16, all classes.

    A row is written once, so no lock is needed: the label first, then its checksum in `known`,
    where 0 is a missing label. A label with another checksum counts as missing. Teachers may
    differ in the last bit, so a row is never overwritten: another thread or reader may be sealing
    it at this moment.
    """

    def __init__(
        self, folder: Path, meta: LabelMeta, ids: NDArray[np.int64], classes: int
    ) -> None:
        self.folder, self.meta, self.ids, self.classes = folder, meta, ids, classes
        known = folder / "known.npy"
        with locked(folder.with_suffix(".lock")):
            say = logging.getLogger("kdlab").warning
            done = usable(folder, meta, lambda line: say("%s", line))
            shape = (meta.views, len(ids))
            if not done and not _is_growing(folder, shape, classes):
                folder.mkdir(parents=True, exist_ok=True)
                arrays(folder, len(ids), classes, meta, "w+")
                known.unlink(missing_ok=True)
                write_made_by(folder, meta, len(ids), "")
                np.save(known, np.zeros(shape, np.uint32))
        mode: Literal["r", "r+"] = "r" if done else "r+"
        self._labels = arrays(folder, len(ids), classes, meta, mode)
        self._known = None if done else np.load(known, mmap_mode="r+")
        self._made_by = None if done else np.load(folder / _MADE_BY, mmap_mode="r+")

    def view_of(self, epoch: int) -> int:
        return int(epoch % self.meta.views)

    def knows(self, ids: NDArray[np.int64], epoch: int) -> bool:
        if self._known is None:
            return True
        view, rows = self.view_of(epoch), self._rows(ids)
        known = self._known[view, rows]
        return bool(known.all()) and bool(
            (known == _checksums(self._labels["logits"][view, rows])).all()
        )

    def get(self, ids: NDArray[np.int64], epoch: int) -> NDArray[np.float32]:
        return read(self._labels, self.view_of(epoch), self._rows(ids), self.classes)

    def put(
        self, ids: NDArray[np.int64], epoch: int, logits: NDArray[np.float32], engine: str
    ) -> None:
        """Store (N, classes) logits of these samples, and the engine that computed them."""
        known, engines = self._known, self._made_by
        if known is None or engines is None or sealed(self.folder):  # by another reader
            return
        view, rows = self.view_of(epoch), self._rows(ids)
        there = known[view, rows] != 0
        if there.any():  # rare: most are new
            written = rows[there]
            labels = self._labels["logits"][view, written]
            there[there] = known[view, written] == _checksums(labels)
        rows, small = rows[~there], logits[~there].astype(np.float16)
        self._labels["logits"][view, rows] = small
        engines[view, rows] = engine.encode("ascii", "replace")
        known[view, rows] = _checksums(small)

    def finish(self) -> bool:
        """Seal the file where it is complete, and return whether it is; may be called repeatedly.

        Sealing takes as long as reading the whole file; `put` may be called meanwhile.
        """
        if self._known is None or not self._known.all():
            return self._known is None
        with locked(self.folder.with_suffix(".lock")):
            if not sealed(self.folder):  # else another reader was first
                self._labels["logits"].flush()
                assert self._made_by is not None
                self._made_by.flush()
                if not self._forget_damaged(self._known):
                    return False
                write_meta(self.folder, self.meta)
                (self.folder / "known.npy").unlink(missing_ok=True)
            self._known = None
        return True

    def _forget_damaged(self, known: NDArray[np.uint32]) -> bool:
        """Mark labels with a wrong checksum as missing; return whether there were none."""
        all_fit = True
        for view in range(self.meta.views):
            for start in range(0, len(self.ids), _CHECKED_AT_ONCE):
                rows = slice(start, start + _CHECKED_AT_ONCE)
                labels = self._labels["logits"][view, rows].astype(np.float16, copy=False)
                wrong = known[view, rows] != _checksums(labels)
                known[view, rows][wrong] = 0
                all_fit &= not wrong.any()
        return all_fit

    def _rows(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.searchsorted(self.ids, ids)


def _checksums(labels: NDArray[np.float16]) -> NDArray[np.uint32]:
    """(N,) checksums, none of them 0."""
    rows = np.ascontiguousarray(labels)
    return np.array([zlib.crc32(row.tobytes()) or 1 for row in rows], np.uint32)


def _is_growing(folder: Path, shape: tuple[int, int], classes: int) -> bool:
    """Return whether partly filled files of this shape exist."""
    try:
        known = np.load(folder / "known.npy", mmap_mode="r")
        logits = np.load(folder / "logits.npy", mmap_mode="r")
        engines = np.load(folder / _MADE_BY, mmap_mode="r")
    except (OSError, ValueError, EOFError):  # missing or damaged: they are created again
        return False
    fits = known.shape == engines.shape == shape and logits.shape == (*shape, classes)
    kinds = (known.dtype, logits.dtype, engines.dtype)
    return fits and kinds == (np.uint32, np.float16, _ENGINE)
