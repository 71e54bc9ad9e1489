"""Base class of data sets of encoded image files."""

import glob
import json
import os
import re
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal, Self

import numpy as np
from numpy.typing import NDArray

from kdlab.config import Fault, Range
from kdlab.config.folders import located
from kdlab.config.kept import key_of
from kdlab.data.encoded import remote
from kdlab.data.encoded.decode import Interpolation
from kdlab.data.encoded.formats import readable
from kdlab.data.encoded.holders import reading
from kdlab.data.encoded.index import NO_SPLIT
from kdlab.data.encoded.inventory import Inventory
from kdlab.data.encoded.layout import SPLITS, composed, split_of
from kdlab.data.encoded.pictures import EncodedData, EncodedPictures
from kdlab.data.encoded.store import Store, indexed
from kdlab.data.images import PIXELS, Configuration, DataSpec, Decoded, ImageData, Notify
from kdlab.data.shown import CropMode, InputSpec
from kdlab.data.splits import NO_LABEL, TEST, TRAIN, VALIDATION, origin
from kdlab.errors import DataError

_SMALL, _FEW = 64, 2e9  # pixels of a side, bytes in all: up to these `auto` decodes once
_PLAIN = {"crop_pct": 1.0, "interpolation": "bilinear", "crop_mode": "center"}
_NAMED = 10  # broken images in a message
_BRACES = re.compile(r"\{([^{}]*)\}")
Roots = str | tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class ImageFiles(DataSpec):
    """Settings of every set of image files.

    root: a path or URL, or several that together form one set; `{000..127}` counts, `{a,b}` lists
        and `*` finds; `kdlab://NAME` comes with kdlab.
    validation_root, test_root: of the images of these splits, where they lie apart.
    size: pixels of a side; larger images are shrunk. Grey images of 16 bits and of floating-point
        numbers from 0 to 1 are scaled to 8 bits.
    kept: `decoded` once to this size, in host memory, and crops are of these pixels; or `encoded`,
        and each view is cut from the original when it is needed: any number of images, and crops of
        all their pixels. `auto` decodes up to 64 pixels and 2 GB.
    crop_pct: share of the resized image that is shown without augmentation, as timm calls it. null
        takes it from the student's configuration (for a teacher's data the teacher's), and 1 for
        sets of up to 64 pixels.
    interpolation: of resized images; null as with crop_pct, else bilinear.
    crop_mode: `center` resizes the shorter side and shows the middle, `squash` both sides alike,
        `border` the longer side, with a border; null as with crop_pct, else center.
    fill: red, green and blue of that border; null as with crop_pct, else grey.
    test_share: of all images, class by class, when there are no test images.
    broken: what to do about images that cannot be decoded: `refuse` to start, or `skip` them and
        say how many; one that vanishes while a run goes on is then shown in grey.
    """

    root: Roots
    validation_root: Roots | None = None
    test_root: Roots | None = None
    size: Annotated[int, Range(ge=4)] = 32
    channels: Literal[1, 3] = 3
    kept: Literal["auto", "decoded", "encoded"] = "auto"  # a key of JSON
    crop_pct: Annotated[float, Range(gt=0, le=1)] | None = None
    interpolation: Interpolation | None = None
    crop_mode: CropMode | None = None
    fill: tuple[Annotated[int, Range(ge=0, le=255)], ...] | None = None
    test_share: Annotated[float, Range(ge=0, lt=1)] = 0.2
    broken: Literal["refuse", "skip"] = "refuse"

    def cross_faults(self) -> Iterator[Fault]:
        yield from super().cross_faults()
        if self.fill is not None and len(self.fill) != 3:
            yield Fault("fill", "must be red, green and blue, as [124, 116, 104]")

    def shown_as(self, configuration: Configuration) -> Self:
        if all(getattr(self, name) is not None for name in _PLAIN):
            return self
        defaults = {**_PLAIN, **(configuration(self.size) if self.size > _SMALL else {})}
        unset = {k: v for k, v in defaults.items() if getattr(self, k) is None}
        return replace(self, **unset)

    def shown(self) -> InputSpec:
        fields = {name: getattr(self, name) for name in (*_PLAIN, "fill")}
        fields = {name: value for name, value in fields.items() if value is not None}
        return InputSpec(size=self.size, channels=self.channels, **fields)

    @abstractmethod
    def find(self, root: str, inventory: Inventory) -> None:
        """Add the images of one root; the caller sets their split where it is known.

        Raises:
            DataError: the root is missing, or is no such set.
        """

    def roots(self) -> list[tuple[str, int | None]]:
        """Each root and the split of its images; None where the images set it.

        Raises:
            DataError: a pattern matches nothing.
        """
        parts = (
            (self.root, None),
            (self.validation_root, VALIDATION),
            (self.test_root, TEST),
        )
        return [
            (place, split)
            for roots, split in parts
            if roots is not None
            for place in expanded(roots)
        ]

    def store(self, say: Notify = lambda line: None, *, verify: bool = False) -> Store:
        """The store of the images, in the order of names.

        Raises:
            DataError: a root is missing, cannot be read, or has no image.
        """
        parts = [str(self.component), self.roots(), self._own_fields(), sorted(readable())]
        key = key_of(json.dumps(parts, sort_keys=True))
        return indexed(key, self._walk, say, verify=verify)

    def _own_fields(self) -> dict[str, object]:
        """Fields of this kind of set alone, which decide what `find` finds."""
        common = ImageFiles.__dataclass_fields__
        return {name: value for name, value in self.to_dict().items() if name not in common}

    def _walk(self) -> Inventory:
        inventory, roots = Inventory(), self.roots()
        places = [root for root, split in roots if split is None]
        common = os.path.commonprefix(places).rpartition("/")[0]  # noqa: RUF071  # of URLs, too
        for root, split in roots:
            first = len(inventory.images)
            self.find(root, inventory)
            split_name = split_of(root[len(common) :]) if len(places) > 1 else None
            if split is not None:
                inventory.put_in(split, first, ("", "validation_root", "test_root")[split])
            elif split_name is not None and all(
                image.split is None for image in inventory.images[first:]
            ):
                inventory.put_in(SPLITS[split_name.lower()], first, split_name)
        return inventory

    def notes(self, data: ImageData) -> list[str]:
        store = self.store()
        facts, parts = store.index.facts, (data.train, data.validation, data.test)
        brought = set(self._splits(store).tolist())
        split = origin(facts.splits, brought, parts, self.split_seed)
        return [*facts.notes, split]

    def identity(self) -> str:
        store = self.store()
        shape = (self.shown().to_dict(), PIXELS, self.test_share, self.broken)
        if self._is_encoded(store):
            return f"{self.component} encoded {self._digest(store)} {self.split_seed}"
        facts = (store.index.facts.digest, store.stamp(), self.roots(), self._own_fields())
        return f"{self.component} v4 {facts} {shape} {self.split_seed}"

    def expected_bytes(self) -> int:
        return len(self.store()) * self.channels * self.size**2

    def load(self, say: Notify = lambda line: None, *, verify: bool = False) -> ImageData:
        store = self.store(say, verify=verify)
        self.refuse_broken(store.index.facts.broken, store, say)
        unlabelled = int((_unlabelled_tests(store) & (store.index.height >= 0)).sum())
        if unlabelled:
            say(f"{unlabelled:,} images of validation and test have no label: left out.")
        if not self._is_encoded(store):
            return super().load(say, verify=verify)
        labels, shown = store.index.label.astype(np.int64), self.shown()
        parts = self._split(labels, self._splits(store))
        return EncodedData(
            str(self.component),
            EncodedPictures(store, shown, self.broken == "skip"),
            self._keep_few_labels(labels, parts[0]),
            store.index.facts.classes,
            *parts,
            digest=self._digest(store),
            augment=self.augment,
            shown=shown,
            sampling=self.sampling,
        )

    def refuse_broken(self, broken: Sequence[str], store: Store, say: Notify) -> None:
        """Raise DataError naming the first broken images; report them where they are skipped."""
        what = f"{len(broken)} of {len(store):,} images cannot be decoded"
        if broken and self.broken == "skip":
            say(f"{what} and are skipped.")
        elif broken:
            listed = "\n  ".join(broken[:_NAMED])
            raise DataError(
                f"{what}; nothing was started:\n  {listed}\nRepair or remove them, or skip them "
                "with broken: skip."
            )

    def _is_encoded(self, store: Store) -> bool:
        if self.kept != "auto":
            return self.kept == "encoded"
        decoded = len(store) * self.channels * self.size**2
        return self.size > _SMALL or decoded > _FEW

    def _digest(self, store: Store) -> str:
        """Digest of everything the pixels depend on; not of where the files lie."""
        facts = store.index.facts
        parts = (facts.digest, self.shown().to_dict(), PIXELS, len(facts.broken))
        return key_of(repr(parts))

    def decode(self, say: Notify) -> Decoded:
        store = self.store(say)
        labels = store.index.label.astype(np.int64)
        every = np.arange(len(store))
        inputs, reasons = EncodedPictures(store, self.shown()).decode_all(every, say)
        self.refuse_broken(sorted(reasons.values()), store, say)
        splits = self._splits(store, sorted(reasons))
        return Decoded(inputs, labels, splits, store.index.facts.classes)

    def _splits(self, store: Store, unreadable: Sequence[int] = ()) -> NDArray[np.uint8]:
        """Split of each row as the set defines it; NO_SPLIT where a row cannot be used."""
        split = store.index.split.copy()
        usable = (store.index.height >= 0) & ~_unlabelled_tests(store)
        usable[list(unreadable)] = False
        split[split == NO_SPLIT] = TRAIN
        split[~usable] = NO_SPLIT
        if not store.index.facts.classes:
            raise DataError(
                f"{self.root}: no image has a label. Images of validation and test need one; set "
                "test_root to them."
            )
        if not (split == TRAIN).any():
            raise DataError(
                f"{self.root}: all images are of {', '.join(store.index.facts.splits)}; there are "
                "none to train on."
            )
        return split

    def _shares(self) -> tuple[float, float]:
        return self.validation_share, self.test_share


def _unlabelled_tests(store: Store) -> NDArray[np.bool_]:
    """Images of validation and test without a label, on which no accuracy can be measured."""
    split = store.index.split
    return (store.index.label == NO_LABEL) & ((split == VALIDATION) | (split == TEST))


def expanded(roots: Roots) -> list[str]:
    """Every place that roots and patterns name; paths are absolute.

    Raises:
        DataError: a pattern matches nothing.
    """
    places = []
    for pattern in map(located, [roots] if isinstance(roots, str) else roots):
        for place in _without_braces(pattern):
            places += _matches(place)
    return places


def _without_braces(pattern: str) -> list[str]:
    """Expand `{000..002}` and `{a,b}` as a shell does."""
    match = _BRACES.search(pattern)
    if match is None:
        return [pattern]
    first, dots, last = match.group(1).partition("..")
    if dots and first.isdecimal() and last.isdecimal():
        numbers = range(int(first), int(last) + 1)
        items = [str(number).zfill(len(first)) for number in numbers]
    else:
        items = match.group(1).split(",")
    before, after = pattern[: match.start()], pattern[match.end() :]
    return [one for item in items for one in _without_braces(f"{before}{item}{after}")]


def _matches(place: str) -> list[str]:
    if remote.is_url(place):
        if "*" not in place:
            return [place]
        with reading(place):
            places = remote.matches(place)
    else:
        path = os.path.abspath(os.path.expanduser(place))
        if os.path.exists(path) or not glob.has_magic(place):
            return [str(Path(path).resolve())]
        places = glob.glob(path)
    if not places:
        raise DataError(f"{place} matches nothing.")
    return sorted(places)


def class_of(value: object) -> str | None:
    """Class name from a cell of a table, None where empty; whole floats become integers.

    Raises:
        DataError: the cell has several classes.
    """
    if value is None or value != value:  # noqa: PLR0124  # not a number
        return None
    if isinstance(value, list | tuple | dict):
        raise DataError(
            f"has {value!r} as a label, but an image has one class. Name the column: "
            "data.label_column=NAME"
        )
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    text = value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
    return composed(text.strip()) or None
