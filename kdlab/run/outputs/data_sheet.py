"""A data set before anybody trains on it: what it holds, what a model will see, how fast."""

import os
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kdlab.data.encoded.formats import kind_of
from kdlab.data.encoded.pictures import EncodedData, EncodedPictures
from kdlab.data.image_files import ImageFiles
from kdlab.data.images import DataSpec, ImageData
from kdlab.data.splits import NO_LABEL, by_class
from kdlab.report import page
from kdlab.report.pictures import Pictures
from kdlab.report.table import text_table_left
from kdlab.run.experiment import load
from kdlab.run.rates import views_per_second

_SHOWN = 24  # views
_LOOKED_AT = 5000  # images that are decoded to find broken ones
_NAMED = 10  # of these, and of duplicates
_TIMED_S = 1.0
_TIMED = 64  # views at a time
_EACH = 64  # images that are decoded between two lines of progress


@dataclass(frozen=True, slots=True)
class DataSheet:
    """What there is to know of a set; a table in a terminal, with its views in a notebook."""

    name: str
    data: ImageData
    broken: Sequence[str]  # images that cannot be decoded, with the reason
    looked_at: int  # images that were decoded to find them
    duplicates: Sequence[tuple[str, str]]  # the same image in train and in another part
    contradictions: Sequence[tuple[str, str]]  # the same image in two classes
    views_per_s: float  # of this machine, all cores
    pictures: Pictures
    notes: Sequence[
        str
    ]  # every file in words, where the split comes from, what is doubtful

    def counts(self) -> list[tuple[str, int, int, int]]:
        """(class, train, validation, test) images."""
        parts = [
            np.bincount(_known(self.data, ids), minlength=len(self.data.classes))
            for ids in (self.data.train, self.data.validation, self.data.test)
        ]
        return [
            (name, *map(int, row))
            for name, *row in zip(self.data.classes, *parts, strict=True)
        ]

    def facts(self) -> list[str]:
        """A line for each."""
        data = self.data
        channels, height, width = data.shape
        unlabelled = f", {data.unlabelled:,} without a label" if data.unlabelled else ""
        kept = (
            "encoded, each view cut from the original"
            if _store(data)
            else "decoded, in memory"
        )
        parts = (
            f"{len(data.train):,} train{unlabelled}, {len(data.validation):,} validation"
        )
        found = [
            f"{parts}, {len(data.test):,} test; {len(data.classes)} classes",
            *self.notes,
            f"shown as {height} by {width} pixels, {channels} channels; kept {kept}",
        ]
        if self.broken:  # the speed was not measured: it would end at these
            found.append(
                f"{len(self.broken)} of {self.looked_at:,} images cannot be decoded:"
            )
            found += [f"  {line}" for line in self.broken[:_NAMED]]
        else:
            found.append(
                f"{self.views_per_s:,.0f} views/s on this machine's {os.cpu_count()} cores: a "
                "student that trains on fewer never waits for them"
            )
            if _store(data):
                found.append(f"{self.looked_at:,} images decoded: none is broken")
        if self.duplicates:
            found.append(
                f"{len(self.duplicates)} images of validation or test are in train, too: what is "
                "measured on them is remembered, not learned"
            )
            found += [f"  {one}  =  {other}" for one, other in self.duplicates[:_NAMED]]
        elif len(data.train) and len(data.validation) + len(data.test):
            alike = "byte by byte" if _store(data) else "pixel by pixel"
            found.append(f"no image of validation or test is in train (compared {alike})")
        if self.contradictions:
            found.append(f"{len(self.contradictions)} images are in two classes:")
            found += [f"  {one}  =  {other}" for one, other in self.contradictions[:_NAMED]]
        return found

    def to_json(self) -> dict[str, Any]:
        """What was found, for scripts."""
        parts = ("train", "validation", "test")
        return {
            "name": self.name,
            "classes": {
                name: dict(zip(parts, counts, strict=True))
                for name, *counts in self.counts()
            },
            "shape": list(self.data.shape),
            "looked_at": self.looked_at,
            "broken": list(self.broken),
            "duplicates": [list(pair) for pair in self.duplicates],
            "contradictions": [list(pair) for pair in self.contradictions],
            "notes": list(self.notes),
            "views_per_s": self.views_per_s,
        }

    def __repr__(self) -> str:
        rows = [[name, *map(str, counts)] for name, *counts in self.counts()]
        head = ["class", "train", "validation", "test"]
        facts = "\n".join(self.facts())
        return f"{self.name}\n{facts}\n\n{text_table_left(head, rows)}"

    def _repr_html_(self) -> str:
        facts = page.table(["about"], [[line] for line in self.facts()])
        counts = page.table(["class", "train", "validation", "test"], self.counts())
        views = f"<h4>Views of training</h4>{self.pictures._repr_html_()}"
        return f"<div>{facts}{views}<h4>Images of each class</h4>{counts}</div>"

    def write(self, path: str | Path) -> Path:
        """As an HTML page of its own."""
        out = Path(path)
        out.write_text(page.whole(self.name, self._repr_html_()), encoding="utf-8")
        return out


def look_at(
    name: str | Path, *overrides: str, say: Callable[[str], None] = lambda line: None
) -> DataSheet:
    """The sheet of a data set.

    Args:
        name: a folder, zip, tar or table of images, a card or component such as `data/digits`, or a
            config, whose data it is.
        overrides: of its keys, such as "size=128" and "augment.flip=true".
        say: gets a line when it takes long.

    Raises:
        BadInput: no such set, or it cannot be used.
    """
    spec = data_spec(name, *overrides)
    known: Sequence[str] = ()
    if isinstance(spec, ImageFiles):  # what would be refused is shown here
        spec = replace(spec, broken="skip")
        known = spec.store(say, verify=True).index.facts.broken
    data = spec.load(say, verify=True)
    ids, _ = by_class(data.train, data.labels, min(_SHOWN, len(data.train)), 0)
    looked_at, broken = _broken(data, known, say)
    lines = [[data.label_name(int(k))] for k in ids]
    rate, pictures = 0.0, Pictures(np.zeros((0, *data.shape), np.uint8), [])
    if not broken:  # else views would end here
        pictures = Pictures(data.views(ids, 0), lines)
        rate = views_per_second(data, _TIMED, _TIMED_S)
    return DataSheet(
        str(name), data, broken, looked_at, *_twice(data), rate, pictures, spec.notes(data)
    )


def _known(data: ImageData, ids: NDArray[np.int64]) -> NDArray[np.int64]:
    """Labels of those that have one."""
    labels = data.labels[ids]
    return labels[labels != NO_LABEL]


def data_spec(name: str | Path, *overrides: str) -> DataSpec:
    """The data of a config, a card or component, or of a path to images."""
    text = str(name)
    path = Path(text).expanduser()
    kind = None if path.suffix in (".yaml", ".yml") else kind_of(text)
    if kind is not None:
        block: object = {"type": kind, "root": text}
    elif text.startswith("data/"):
        block = text
    else:
        return load(text, *(f"data.{override}" for override in overrides)).spec.data
    return load(
        "smoke/none", {"data": block}, *(f"data.{override}" for override in overrides)
    ).spec.data


def _store(data: ImageData) -> EncodedPictures | None:
    return data.inputs if isinstance(data, EncodedData) else None


def _broken(
    data: ImageData, known: Sequence[str], say: Callable[[str], None]
) -> tuple[int, list[str]]:
    """How many images were decoded, and which of them cannot be; a share of very many.

    `known` were found when the set was indexed.
    """
    pictures = _store(data)
    if pictures is None:  # all of them were
        return len(data.labels), list(known)
    every = np.flatnonzero(pictures.store.index.height >= 0)
    some, _ = by_class(every, data.labels, min(_LOOKED_AT, len(every)), 0)
    found = list(known)
    for begin in range(0, len(some), _EACH):
        found += pictures.tried(some[begin : begin + _EACH], say)[1].values()
        if begin and begin % (20 * _EACH) == 0:
            say(f"decoded {begin:,} of {len(some):,} images")
    return len(some) + len(known), found


def _twice(data: ImageData) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """Images of validation and test that are in train, and images of two classes, byte by byte."""
    rows = np.concatenate([data.train, data.validation, data.test])
    if (pictures := _store(data)) is not None:  # only files of one size need to be read
        sizes = pictures.store.index.size[rows]
        _, number, count = np.unique(sizes, return_inverse=True, return_counts=True)
        rows = rows[count[number] > 1]
    trained = np.isin(rows, data.train)
    alike = defaultdict[object, list[tuple[int, bool]]](list)
    for row, in_train in zip(rows.tolist(), trained.tolist(), strict=True):
        alike[_digest(data, row)].append((row, in_train))
    leaks, unlike = [], []
    for same in alike.values():
        first, first_in_train = same[0]  # train comes first
        for row, in_train in same[1:]:
            pair = _shown(data, row), _shown(data, first)
            if first_in_train and not in_train:
                leaks.append(pair)
            if NO_LABEL not in (labels := {int(data.labels[k]) for k in (row, first)}):
                unlike += [pair] * (len(labels) > 1)
    return leaks, unlike


def _digest(data: ImageData, row: int) -> object:
    pictures = _store(data)
    if pictures is None:
        return sha256(data.inputs[np.array([row])].tobytes()).digest()
    index = pictures.store.index
    if index.crc[row] >= 0:  # of an archive: known without reading
        return int(index.size[row]), int(index.crc[row])
    return sha256(pictures.store.read(row)).digest()


def _shown(data: ImageData, row: int) -> str:
    pictures = _store(data)
    return f"image {row}" if pictures is None else pictures.store.shown(row)
