"""The Offline format: soft labels of some views of each sample, as files.

A label belongs to a view, and a view to (sample id, augmentation seed). What a file was
written for stands in its meta.json, which comes last: its presence means complete. A
served run may fill one as it goes (`GrowingLabels`); when every label is there it has
become an ordinary Offline cache. NumPy only, since the reader process imports no torch.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from kdlab.config.home import home, locked, write_json
from kdlab.errors import CacheError
from kdlab.messages import plain, typed
from kdlab.soft_labels.compressed import TopK, expand

if TYPE_CHECKING:  # it imports torch
    from kdlab.soft_labels.source import Samples


Stored = np.memmap[tuple[int, ...], np.dtype[np.float16 | np.int32]]


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelMeta:
    """What the labels depend on: pixels, views, samples and the teacher's weights."""

    data: str  # digest of the pixels
    augment: str  # fingerprint of what makes views of them
    ids: str  # hash of the samples' ids
    teacher: str  # fingerprint of the weights
    views: int  # of each sample
    top_k: int | None  # classes of each label; None is all
    format: int = 1


def meta_for(samples: "Samples", teacher: str, views: int, top_k: int | None) -> LabelMeta:
    key = samples.view_key()
    return LabelMeta(
        data=key["data"],
        augment=key["augment"],
        ids=hashlib.sha256(samples.train_ids().tobytes()).hexdigest()[:16],
        teacher=teacher,
        views=views if samples.augmented else 1,
        top_k=top_k,
    )


def own_folder(meta: LabelMeta) -> Path:
    text = json.dumps(plain(meta), sort_keys=True)
    return home() / "soft_labels" / hashlib.sha256(text.encode()).hexdigest()[:16]


def complete(folder: Path) -> bool:
    return (folder / "meta.json").is_file()


def refuse_other(folder: Path, meta: LabelMeta) -> None:
    """Raise CacheError when a file was written for something else."""
    found: dict[str, object] = json.loads((folder / "meta.json").read_text())
    wanted: dict[str, object] = plain(meta)
    unlike = [
        f"  {key}: the cache has {found.get(key)!r}, this run needs {wanted.get(key)!r}"
        for key in sorted({*found, *wanted})
        if found.get(key) != wanted.get(key)
    ]
    if unlike:
        raise CacheError(
            f"The soft-label cache {folder} cannot be replayed for this run; its labels "
            "belong to other views or another teacher:\n" + "\n".join(unlike) + "\n"
            "Choose another soft_labels.path, or leave it out and a new one is written."
        )


def read_meta(folder: Path) -> LabelMeta:
    return typed(LabelMeta, json.loads((folder / "meta.json").read_text()))


def write_meta(folder: Path, meta: LabelMeta) -> None:
    """The last of all: its presence means complete."""
    write_json(folder / "meta.json", plain(meta))


def arrays(
    folder: Path,
    count: int,
    classes: int,
    meta: LabelMeta,
    mode: Literal["r", "r+", "w+"],
) -> dict[str, Stored]:
    """The label arrays, memory-mapped; "w+" makes new ones."""
    views, k = meta.views, meta.top_k
    shapes: dict[str, tuple[type, tuple[int, ...]]] = (
        {"logits": (np.float16, (views, count, classes))}
        if k is None
        else {
            "values": (np.float16, (views, count, k)),
            "classes": (np.int32, (views, count, k)),
            "tail": (np.float16, (views, count)),
        }
    )
    return {
        name: np.lib.format.open_memmap(
            folder / f"{name}.npy", mode=mode, dtype=dtype, shape=shape
        )
        if mode == "w+"
        else np.load(folder / f"{name}.npy", mmap_mode=mode)
        for name, (dtype, shape) in shapes.items()
    }


def read(
    parts: Mapping[str, Stored], view: int, rows: NDArray[np.int64], classes: int
) -> NDArray[np.float32]:
    """(N, classes) float32 logits of these rows."""
    found = {name: array[view, rows] for name, array in parts.items()}
    if "logits" in found:
        return found["logits"].astype(np.float32)
    return expand(TopK(**found), classes)


class GrowingLabels:
    """A label file that several readers fill while they train; float16, all classes.

    Rows are written more than once only with the same labels, so no lock is needed: the
    label first, then its mark in `known`.
    """

    def __init__(
        self, folder: Path, meta: LabelMeta, ids: NDArray[np.int64], classes: int
    ) -> None:
        self.folder, self.meta, self.ids, self.classes = folder, meta, ids, classes
        known = folder / "known.npy"
        with locked(folder.with_suffix(".lock")):
            if complete(folder):
                refuse_other(folder, meta)
            elif not known.is_file():
                folder.mkdir(parents=True, exist_ok=True)
                arrays(folder, len(ids), classes, meta, "w+")
                np.save(known, np.zeros((meta.views, len(ids)), np.uint8))
        self._complete = complete(folder)
        mode: Literal["r", "r+"] = "r" if self._complete else "r+"
        self._labels = arrays(folder, len(ids), classes, meta, mode)
        self._known = None if self._complete else np.load(known, mmap_mode="r+")

    def view_of(self, epoch: int) -> int:
        return int(epoch % self.meta.views)

    def knows(self, ids: NDArray[np.int64], epoch: int) -> bool:
        if self._known is None:
            return True
        return bool(self._known[self.view_of(epoch), self._rows(ids)].all())

    def get(self, ids: NDArray[np.int64], epoch: int) -> NDArray[np.float32]:
        return read(self._labels, self.view_of(epoch), self._rows(ids), self.classes)

    def put(self, ids: NDArray[np.int64], epoch: int, logits: NDArray[np.float32]) -> None:
        if self._known is None:
            return
        view, rows = self.view_of(epoch), self._rows(ids)
        self._labels["logits"][view, rows] = logits.astype(np.float16)
        self._known[view, rows] = 1

    def finish(self) -> bool:
        """Whether it is a complete Offline cache now; called now and then and at the end."""
        if self._known is not None and self._known.all():
            self._labels["logits"].flush()
            write_meta(self.folder, self.meta)
            (self.folder / "known.npy").unlink(missing_ok=True)
            self._known = None
        return self._known is None

    def _rows(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.searchsorted(self.ids, ids)
