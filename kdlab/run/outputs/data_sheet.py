"""A data set before training: its content, the views of a model, the loading speed."""

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from kdlab.checks import checked
from kdlab.checks.data import DataFacts, Pairs
from kdlab.data.encoded.formats import kind_of
from kdlab.data.image_files import ImageFiles
from kdlab.data.images import DataSpec, ImageData
from kdlab.data.splits import by_class
from kdlab.events.checks import CheckMade
from kdlab.report import check_table, page
from kdlab.report.check_table import worst_first
from kdlab.report.page import Card, CardPage, Presentable
from kdlab.report.pictures import Pictures
from kdlab.report.table import text_table_left
from kdlab.run.experiment import load
from kdlab.run.outputs.data_facts import broken_in, facts_of, store_of
from kdlab.run.outputs.lookalikes import looked_closely
from kdlab.run.rates import views_per_second

_SHOWN = 24  # views
_TIMED_S = 1.0
_CLOSELY = 160  # pixels at least, for a network with published weights
_TIMED = 64  # views at a time


@dataclass(frozen=True, slots=True)
class DataSheet(Presentable):
    """All facts of a data set: a table in a terminal, with views in a notebook."""

    name: str
    data: ImageData
    known: DataFacts
    views_per_s: float  # on all cores; 0: not measured, as images are broken
    pictures: Pictures
    notes: Sequence[str]  # on files, and on where the split comes from

    @property
    def broken(self) -> Sequence[str]:
        """Images that cannot be decoded, with the reason."""
        return self.known.broken or ()

    @property
    def duplicates(self) -> Pairs:
        """Images of validation or test, each with its duplicate in train."""
        return self.known.leaks or ()

    @property
    def contradictions(self) -> Pairs:
        """Pairs of identical images with different classes."""
        return self.known.contradictions or ()

    def checks(self) -> list[CheckMade]:
        """Return findings: issues first, then tips, then passed checks."""
        return worst_first(checked(self.known))

    def counts(self) -> list[tuple[str, int, int, int]]:
        """Return (class, images of train, validation, test) of every class."""
        rows = self.known.counts.T.tolist()
        return [(name, *row) for name, row in zip(self.data.classes, rows, strict=True)]

    def facts(self) -> list[str]:
        """Return lines of facts: sizes, classes, model input, speed."""
        data = self.data
        channels, height, width = data.shape
        unlabelled = f", {data.unlabelled:,} without a label" if data.unlabelled else ""
        colours = {1: "grey", 3: "RGB"}.get(channels, f"{channels} channels")
        storage = (
            "each view cut from its file" if store_of(data) else "decoded once into memory"
        )
        parts = (
            f"{len(data.train):,} train{unlabelled}, {len(data.validation):,} validation"
        )
        lines = [
            f"{parts}, {len(data.test):,} test; {len(data.classes)} classes",
            *self.notes,
            f"model input {height} × {width}, {colours}; {storage}",
        ]
        if not self.broken:  # else no speed was measured: loading fails at these
            lines.append(
                f"{self.views_per_s:,.0f} views/s on this machine's {os.cpu_count()} cores: "
                "loading is no bottleneck for a student that trains on fewer"
            )
            if store_of(data):
                lines.append(f"{self.known.looked_at:,} images decoded: none is broken")
        return lines

    def to_json(self) -> dict[str, Any]:
        """Return all facts and findings for scripts."""
        parts = ("train", "validation", "test")
        return {
            "name": self.name,
            "classes": {
                name: dict(zip(parts, counts, strict=True))
                for name, *counts in self.counts()
            },
            "shape": list(self.data.shape),
            "looked_at": self.known.looked_at,
            "broken": list(self.broken),
            "duplicates": [list(pair) for pair in self.duplicates],
            "contradictions": [list(pair) for pair in self.contradictions],
            "notes": list(self.notes),
            "checks": [one.to_json() for one in self.checks()],
            "views_per_s": self.views_per_s,
        }

    def __repr__(self) -> str:
        rows = [[name, *map(str, counts)] for name, *counts in self.counts()]
        head = ["class", "train", "validation", "test"]
        facts = "\n".join([*self.facts(), "", check_table.in_words(self.checks())])
        return f"{self.name}\n{facts}\n\n{text_table_left(head, rows)}"

    def document(self) -> CardPage:
        counts = page.table(["class", "train", "validation", "test"], self.counts())
        cards = [
            Card("Summary", page.lines(self.facts())),
            *check_table.cards(self.checks()),
            Card("Views of training", self.pictures.html()),
            Card("Images of each class", counts),
        ]
        return CardPage(self.name, cards)


def look_at(
    name: str | Path,
    *overrides: str,
    say: Callable[[str], None] = lambda line: None,
    closely: bool = False,
) -> DataSheet:
    """Inspect a data set and return its sheet.

    Args:
        name: a folder, zip, tar or table of images, a card or component such as `data/digits`, or a
            config, whose data is taken.
        overrides: of the set's keys, such as "size=128" and "augment.flip=true".
        say: called with lines of progress.
        closely: also search for near-duplicate images and labels that look wrong, by the features
            of a network with published weights.

    Raises:
        BadInput: the set does not exist or cannot be used, or no such network is installed.
    """
    spec = data_spec(name, *overrides)
    broken_files: Sequence[str] = ()
    if isinstance(spec, ImageFiles):  # images that a run would refuse are shown here
        spec = replace(spec, broken="skip")
        broken_files = spec.store(say, verify=True).index.facts.broken
    data = spec.load(say, verify=True)
    ids, _ = by_class(data.train, data.labels, min(_SHOWN, len(data.train)), 0)
    # As files, even if a run keeps them decoded: files have names.
    files = data
    if isinstance(spec, ImageFiles):
        files = replace(spec, kept="encoded", size=max(spec.size, _CLOSELY)).load(say)
    looked_at, broken = broken_in(data, broken_files, say)
    facts = facts_of(files, (looked_at, broken), most=math.inf).replace(size=data.shape[1])
    if closely and not broken:
        facts = looked_closely(files, facts, None, say)
    lines = [[data.label_name(int(k))] for k in ids]
    rate, pictures = 0.0, Pictures(np.zeros((0, *data.shape), np.uint8), [])
    if not broken:  # else loading views would fail
        pictures = Pictures(data.views(ids, 0), lines)
        rate = views_per_second(data, _TIMED, _TIMED_S)
    return DataSheet(str(name), data, facts, rate, pictures, spec.notes(data))


def data_spec(name: str | Path, *overrides: str) -> DataSpec:
    """Return the data spec of a config, a card or component, or of a path to images."""
    text = str(name)
    kind = None if Path(text).suffix in (".yaml", ".yml") else kind_of(text)
    if kind is not None:
        block: object = {"type": kind, "root": text}
    elif text.startswith("data/"):
        block = text
    else:
        return load(text, *(f"data.{override}" for override in overrides)).spec.data
    return load(
        "smoke/none", {"data": block}, *(f"data.{override}" for override in overrides)
    ).spec.data
