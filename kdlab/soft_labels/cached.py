"""Offline, as the papers call it: the teacher's labels are written once and read back.

A label belongs to a view, and a view to (sample id, augmentation seed). So the cache
holds labels for `views` views of each sample, and training replays exactly those. What
it was written for stands in its meta.json; a run that would see other views, another
teacher or other pixels is refused, because silently wrong labels cost accuracy that
nobody can explain later.
"""

import hashlib
import json
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kdlab.config import Range, register
from kdlab.config.home import home, locked, write_json
from kdlab.errors import CacheError, RunStopped
from kdlab.soft_labels.compressed import TopK, compress, expand, lost_nats
from kdlab.soft_labels.source import (
    Batch,
    LoadedTeacher,
    Samples,
    SourceContext,
    SourceSpec,
    local_batch,
    open_batches,
)

_WRITE_BATCH = 256


@register("soft_labels/cached")
@dataclass(frozen=True, kw_only=True)
class Cached(SourceSpec):
    """Offline: labels of a fixed number of views per sample, written once, fp16.

    views: augmented views per sample; epoch e trains on view e mod views.
    top_k: keep the k likeliest classes and one number for the rest; null keeps all.
    path: folder of the cache; null is one of its own under kdlab's home folder.
    """

    needs_teacher: ClassVar[Literal["none", "in_process", "served"]] = "in_process"
    views: Annotated[int, Range(ge=1)] = 1
    top_k: Annotated[int, Range(ge=1)] | None = None
    path: str | None = None

    def check(self, classes: int) -> None:
        if self.top_k is not None and self.top_k >= classes:
            raise CacheError(
                f"top_k is {self.top_k} and the data has {classes} classes; it must be "
                "smaller. null keeps all classes."
            )

    def build(self, context: SourceContext) -> "CachedSource":
        """The cache, written now if it is not there.

        Raises:
            CacheError: it is there and was written for something else.
        """
        samples = context.samples
        self.check(samples.classes)
        assert context.load_teacher is not None
        teacher = context.load_teacher()
        views = self.views if samples.augmented else 1
        wanted = samples.view_key() | {
            "ids": hashlib.sha256(samples.train_ids().tobytes()).hexdigest()[:16],
            "teacher": teacher.fingerprint,
            "views": views,
            "top_k": self.top_k,
            "format": 1,
        }
        folder = Path(self.path).expanduser() if self.path else _own_folder(wanted)
        with locked(folder.with_suffix(".lock")):
            if (folder / "meta.json").is_file():
                _check(folder, wanted)
            else:
                self._write(folder, wanted, samples, teacher, context)
        return CachedSource(samples, folder, views)

    def _write(
        self,
        folder: Path,
        meta: dict[str, Any],
        samples: Samples,
        teacher: LoadedTeacher,
        context: SourceContext,
    ) -> None:
        count, views = len(samples.train_ids()), meta["views"]
        width = samples.classes * 2 if self.top_k is None else self.top_k * 6 + 2
        size = count * views * width
        report = {
            "folder": str(folder),
            "megabytes": size / 1e6,
            "samples": count,
            "views": views,
        }
        context.report("cache_started", **report)
        folder.mkdir(parents=True, exist_ok=True)
        lost = _fill(folder, meta, samples, teacher, context.stop)
        write_json(folder / "meta.json", meta)  # last: its presence means complete
        context.report("cache_written", **report, lost_nats=lost)


def _own_folder(key: dict[str, Any]) -> Path:
    text = json.dumps(key, sort_keys=True)
    return home() / "soft_labels" / hashlib.sha256(text.encode()).hexdigest()[:16]


def _check(folder: Path, wanted: dict[str, Any]) -> None:
    found = json.loads((folder / "meta.json").read_text())
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


def _arrays(
    folder: Path,
    count: int,
    classes: int,
    meta: dict[str, Any],
    mode: Literal["r", "w+"],
) -> dict[str, NDArray[Any]]:
    views, k = meta["views"], meta["top_k"]
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
        else np.load(folder / f"{name}.npy", mmap_mode="r")
        for name, (dtype, shape) in shapes.items()
    }


def _fill(
    folder: Path,
    meta: dict[str, Any],
    samples: Samples,
    teacher: LoadedTeacher,
    stop: Callable[[], bool],
) -> float:
    """Run the teacher over every view; returns the nats lost by top-k, 0 without it."""
    ids, k = samples.train_ids(), meta["top_k"]
    arrays = _arrays(folder, len(ids), samples.classes, meta, "w+")
    lost = []
    for view in range(meta["views"]):
        for start in range(0, len(ids), _WRITE_BATCH):
            if stop():
                raise RunStopped("stopped by the user while soft labels were written")
            rows = slice(start, start + _WRITE_BATCH)
            logits = teacher.infer(torch.from_numpy(samples.views(ids[rows], view)))
            if k is None:
                arrays["logits"][view, rows] = logits.half().numpy()
                continue
            small = compress(logits, k)
            lost.append(lost_nats(logits, k))
            for name, tensor in small._asdict().items():
                arrays[name][view, rows] = tensor.numpy()
    for array in arrays.values():
        array.flush()  # type: ignore[attr-defined]  # a memmap
    return float(np.mean(lost)) if lost else 0.0


class CachedSource:
    def __init__(self, samples: Samples, folder: Path, views: int) -> None:
        self.samples, self.views = samples, views
        self.ids = samples.train_ids()
        meta = json.loads((folder / "meta.json").read_text())
        self.arrays = _arrays(folder, len(self.ids), samples.classes, meta, "r")

    def epoch(self, epoch: int, done: Collection[int]) -> Iterator[Batch]:
        view = epoch % self.views
        for index, ids in open_batches(self.samples, epoch, done):
            batch = local_batch(self.samples, index, ids, view)
            yield replace(batch, soft=self._labels(ids, view))

    def _labels(self, ids: NDArray[Any], view: int) -> Tensor:
        rows = np.searchsorted(self.ids, ids)
        parts = {k: torch.from_numpy(a[view, rows]) for k, a in self.arrays.items()}
        if "logits" in parts:
            return parts["logits"].float()
        return expand(TopK(**parts), self.samples.classes)

    def figures(self) -> dict[str, float]:
        return {}

    def close(self) -> None:
        return None
