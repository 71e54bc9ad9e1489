"""A data set before anybody trains on it: what it holds, what a model will see, how fast."""

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
_CLOSELY = 160  # pixels at least, of what a network with published weights looks at
_TIMED = 64  # views at a time


@dataclass(frozen=True, slots=True)
class DataSheet(Presentable):
    """What there is to know of a set; a table in a terminal, with its views in a notebook."""

    name: str
    data: ImageData
    known: DataFacts
    views_per_s: float  # of this machine, all cores; 0: not measured, as images are broken
    pictures: Pictures
    notes: Sequence[str]  # every file in words, where the split comes from

    @property
    def broken(self) -> Sequence[str]:
        """Images that cannot be decoded, with the reason."""
        return self.known.broken or ()

    @property
    def duplicates(self) -> Pairs:
        """Images of validation or test, each with the one of train that it is."""
        return self.known.leaks or ()

    @property
    def contradictions(self) -> Pairs:
        """Images of two classes."""
        return self.known.contradictions or ()

    def checks(self) -> list[CheckMade]:
        """Findings: issues first, then tips, then what passed."""
        return worst_first(checked(self.known))

    def counts(self) -> list[tuple[str, int, int, int]]:
        """(class, train, validation, test) images."""
        rows = self.known.counts.T.tolist()
        return [(name, *row) for name, row in zip(self.data.classes, rows, strict=True)]

    def facts(self) -> list[str]:
        """A line for each."""
        data = self.data
        channels, height, width = data.shape
        unlabelled = f", {data.unlabelled:,} without a label" if data.unlabelled else ""
        colours = {1: "grey", 3: "RGB"}.get(channels, f"{channels} channels")
        kept = (
            "each view cut from its file" if store_of(data) else "decoded once into memory"
        )
        parts = (
            f"{len(data.train):,} train{unlabelled}, {len(data.validation):,} validation"
        )
        found = [
            f"{parts}, {len(data.test):,} test; {len(data.classes)} classes",
            *self.notes,
            f"model input {height} × {width}, {colours}; {kept}",
        ]
        if not self.broken:  # else the speed was not measured: it would end at these
            found.append(
                f"{self.views_per_s:,.0f} views/s on this machine's {os.cpu_count()} cores: "
                "loading is no bottleneck for a student that trains on fewer"
            )
            if store_of(data):
                found.append(f"{self.known.looked_at:,} images decoded: none is broken")
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
    """The sheet of a data set.

    Args:
        name: a folder, zip, tar or table of images, a card or component such as `data/digits`, or a
            config, whose data it is.
        overrides: of its keys, such as "size=128" and "augment.flip=true".
        say: gets a line when it takes long.
        closely: look for images that look alike and labels that look wrong, too, by the features
            of a network with published weights.

    Raises:
        BadInput: no such set, it cannot be used, or there is no such network.
    """
    spec = data_spec(name, *overrides)
    known: Sequence[str] = ()
    if isinstance(spec, ImageFiles):  # what would be refused is shown here
        spec = replace(spec, broken="skip")
        known = spec.store(say, verify=True).index.facts.broken
    data = spec.load(say, verify=True)
    ids, _ = by_class(data.train, data.labels, min(_SHOWN, len(data.train)), 0)
    # As files, whatever a run keeps of them: these have names.
    files = data
    if isinstance(spec, ImageFiles):
        files = replace(spec, kept="encoded", size=max(spec.size, _CLOSELY)).load(say)
    looked_at, broken = broken_in(data, known, say)
    facts = facts_of(files, (looked_at, broken), most=math.inf).replace(size=data.shape[1])
    if closely and not broken:
        facts = looked_closely(files, facts, None, say)
    lines = [[data.label_name(int(k))] for k in ids]
    rate, pictures = 0.0, Pictures(np.zeros((0, *data.shape), np.uint8), [])
    if not broken:  # else views would end here
        pictures = Pictures(data.views(ids, 0), lines)
        rate = views_per_second(data, _TIMED, _TIMED_S)
    return DataSheet(str(name), data, facts, rate, pictures, spec.notes(data))


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
