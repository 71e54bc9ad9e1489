"""Offline, as the papers call it: the teacher's labels are written once and read back.

The cache holds labels for `views` views of each sample (label_file.py), and training
replays exactly those. A run with other views, another teacher or other pixels is refused:
wrong labels would silently cost accuracy.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from kdlab.config import Range, register
from kdlab.config.home import locked
from kdlab.errors import CacheError, Fault, RunStopped
from kdlab.events.general import Warned
from kdlab.events.training import CacheStarted, CacheWritten
from kdlab.soft_labels.compressed import compress, lost_nats
from kdlab.soft_labels.label_file import (
    LabelMeta,
    arrays,
    meta_for,
    own_folder,
    read,
    usable,
    write_made_by,
    write_meta,
)
from kdlab.soft_labels.source import (
    Batch,
    LoadedTeacher,
    LocalSource,
    Samples,
    SourceContext,
    SourceSpec,
)

_WRITE_BATCH = 256


@register("soft_labels/cached")
@dataclass(frozen=True, kw_only=True)
class Cached(SourceSpec):
    """Offline: labels of a fixed number of views per sample, written once, fp16.

    views: augmented views per sample; epoch e trains on view e mod views.
    top_k: keep the k likeliest classes and one number for the rest; null keeps all.
    path: folder of the cache; null takes a folder below kdlab's home, by the key of its facts.
    """

    needs_teacher: ClassVar[Literal["none", "in_process", "served"]] = "in_process"
    views: Annotated[int, Range(ge=1, le=1_000_000)] = 1
    top_k: Annotated[int, Range(ge=1)] | None = None
    path: str | None = None

    @property
    def keeps_labels(self) -> bool:
        return True

    def feature_faults(self) -> Iterator[Fault]:
        if self.top_k is not None:
            yield Fault("top_k", f"is {self.top_k}; features are kept whole")

    def check(self, classes: int) -> None:
        if self.top_k is not None and self.top_k >= classes:
            raise CacheError(
                f"top_k is {self.top_k} and the data has {classes} classes; it must be "
                "smaller. null keeps all classes."
            )

    def build(self, context: SourceContext) -> LocalSource:
        """Open the cache; write it first where it is missing.

        Raises:
            CacheError: the cache was written for other views, pixels or another teacher.
        """
        samples = context.samples
        self.check(samples.classes)
        assert context.load_teacher is not None
        teacher = context.load_teacher()
        meta = meta_for(samples, teacher.fingerprint, self.views, self.top_k)
        folder = Path(self.path).expanduser() if self.path else own_folder(meta)

        def warn(line: str) -> None:
            context.report(Warned(message=line))

        with locked(folder.with_suffix(".lock")):
            if not usable(folder, meta, warn):
                self._write(folder, meta, teacher, context)
        all_ids = samples.train_ids()
        width = context.outputs or samples.classes
        stored = arrays(folder, len(all_ids), width, meta, "r")

        def labels(batch: Batch, view: int) -> Tensor:
            rows = np.searchsorted(all_ids, batch.ids)
            return torch.from_numpy(read(stored, view, rows, width))

        return LocalSource(samples, labels, meta.views)

    def _write(
        self, folder: Path, meta: LabelMeta, teacher: LoadedTeacher, context: SourceContext
    ) -> None:
        samples = context.samples
        count, views = len(samples.train_ids()), meta.views
        outputs = context.outputs or samples.classes
        width = outputs * 2 if self.top_k is None else self.top_k * 6 + 2
        size = count * views * width
        about: dict[str, Any] = {"folder": str(folder), "megabytes": size / 1e6}
        about |= {"samples": count, "views": views}
        context.report(CacheStarted(**about))
        folder.mkdir(parents=True, exist_ok=True)
        lost = _fill(folder, meta, outputs, samples, teacher, context.stop)
        write_made_by(folder, meta, count, "eager fp32")
        write_meta(folder, meta)
        context.report(CacheWritten(**about, lost_nats=lost))


def _fill(
    folder: Path,
    meta: LabelMeta,
    outputs: int,
    samples: Samples,
    teacher: LoadedTeacher,
    stop: Callable[[], bool],
) -> float:
    """Run the teacher over every view; return the nats lost by top-k, 0 without it.

    `outputs` numbers are stored of each view: logits, followed by inner outputs.
    """
    ids, k = samples.train_ids(), meta.top_k
    stored = arrays(folder, len(ids), outputs, meta, "w+")
    losses = []
    for view in range(meta.views):
        parts = [slice(at, at + _WRITE_BATCH) for at in range(0, len(ids), _WRITE_BATCH)]
        all_views = samples.views_ahead([ids[rows] for rows in parts], view)
        for rows, views in zip(parts, all_views, strict=True):
            if stop():
                raise RunStopped("stopped by the user while soft labels were written")
            logits = teacher.infer(torch.from_numpy(views)).numpy()
            if k is None:
                stored["logits"][view, rows] = logits.astype(np.float16)
                continue
            losses.append(lost_nats(logits, k))
            for name, array in compress(logits, k)._asdict().items():
                stored[name][view, rows] = array
    for array in stored.values():
        array.flush()
    return float(np.mean(losses)) if losses else 0.0
