"""The base of all sets of encoded image files: where they lie, how they are kept and shown."""

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

_SMALL, _FEW = 64, 2e9  # pixels of a side, bytes in all: decoded once
_PLAIN = {"crop_pct": 1.0, "interpolation": "bilinear", "crop_mode": "center"}
_NAMED = 10  # broken images in a message
_BRACES = re.compile(r"\{([^{}]*)\}")
Roots = str | tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class ImageFiles(DataSpec):
    """What every set of image files can be told.

    root: where it lies: a path or URL, or several that together form one set; `{000..127}` counts,
        `{a,b}` lists and `*` finds; `kdlab://NAME` comes with kdlab.
    validation_root, test_root: of these images alone, where they lie apart.
    size: pixels of a side; larger images are shrunk. Grey images of 16 bits and of floating-point
        numbers from 0 to 1 are scaled to 8 bits.
    kept: `decoded` once to this size, in host memory, and crops are of these pixels; or `encoded`,
        and each view is cut from the original when it is needed: any number of images, and crops of
        all their pixels. `auto` decodes up to 64 pixels and 2 GB.
    crop_pct: share of the resized image that is shown without augmentation, as timm calls it. null
        is what the student's own configuration says (of a teacher's data the teacher's), and 1 of
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
    kept: Literal["auto", "decoded", "encoded"] = "auto"
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
        found = {**_PLAIN, **(configuration(self.size) if self.size > _SMALL else {})}
        return replace(self, **{k: v for k, v in found.items() if getattr(self, k) is None})

    def shown(self) -> InputSpec:
        said = {name: getattr(self, name) for name in (*_PLAIN, "fill")}
        said = {name: value for name, value in said.items() if value is not None}
        return InputSpec(size=self.size, channels=self.channels, **said)

    @abstractmethod
    def find(self, root: str, found: Inventory) -> None:
        """Add the images of one root; their split is set by the caller where it is known.

        Raises:
            DataError: it is missing, or is no such set.
        """

    def roots(self) -> list[tuple[str, int | None]]:
        """Each with the split of its images, None where they say it themselves.

        Raises:
            DataError: a pattern finds nothing.
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
        """Its images, by their place in the order of names.

        Raises:
            DataError: a root is missing or cannot be read, or there is no image below it.
        """
        said = [str(self.component), self.roots(), self._own(), sorted(readable())]
        key = key_of(json.dumps(said, sort_keys=True))
        return indexed(key, self._walk, say, verify=verify)

    def _own(self) -> dict[str, object]:
        """Fields that only this kind of set has: they say what is found."""
        common = ImageFiles.__dataclass_fields__
        return {name: said for name, said in self.to_dict().items() if name not in common}

    def _walk(self) -> Inventory:
        found, roots = Inventory(), self.roots()
        places = [root for root, split in roots if split is None]
        same = os.path.commonprefix(places).rpartition("/")[0]  # noqa: RUF071  # of URLs, too
        for root, split in roots:
            begin = len(found.images)
            self.find(root, found)
            told_by = split_of(root[len(same) :]) if len(places) > 1 else None
            if split is not None:
                found.put_in(split, begin, ("", "validation_root", "test_root")[split])
            elif told_by is not None and all(
                one.split is None for one in found.images[begin:]
            ):
                found.put_in(SPLITS[told_by.lower()], begin, told_by)
        return found

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
        found = (store.index.facts.digest, store.stamp(), self.roots(), self._own())
        return f"{self.component} v4 {found} {shape} {self.split_seed}"

    def expected_bytes(self) -> int:
        return len(self.store()) * self.channels * self.size**2

    def load(self, say: Notify = lambda line: None, *, verify: bool = False) -> ImageData:
        store = self.store(say, verify=verify)
        self.refuse_broken(store.index.facts.broken, store, say)
        untold = int((_untold(store) & (store.index.height >= 0)).sum())
        if untold:
            say(f"{untold:,} images of validation and test have no label and are left out.")
        if not self._is_encoded(store):
            return super().load(say, verify=verify)
        labels, shown = store.index.label.astype(np.int64), self.shown()
        parts = self._split(labels, self._splits(store))
        return EncodedData(
            str(self.component),
            EncodedPictures(store, shown, self.broken == "skip"),
            self._few(labels, parts[0]),
            store.index.facts.classes,
            *parts,
            digest=self._digest(store),
            augment=self.augment,
            shown=shown,
            sampling=self.sampling,
        )

    def refuse_broken(self, broken: Sequence[str], store: Store, say: Notify) -> None:
        """Unless they are to be skipped, which is said; names the first of them."""
        what = f"{len(broken)} of {len(store):,} images cannot be decoded"
        if broken and self.broken == "skip":
            say(f"{what} and are skipped.")
        elif broken:
            listed = "\n  ".join(broken[:_NAMED])
            raise DataError(
                f"{what}; nothing was started:\n  {listed}\nRepair or remove them, or leave them "
                "out with broken: skip."
            )

    def _is_encoded(self, store: Store) -> bool:
        if self.kept != "auto":
            return self.kept == "encoded"
        decoded = len(store) * self.channels * self.size**2
        return self.size > _SMALL or decoded > _FEW

    def _digest(self, store: Store) -> str:
        """What the pixels depend on, wherever the files lie."""
        facts = store.index.facts
        parts = (facts.digest, self.shown().to_dict(), PIXELS, len(facts.broken))
        return key_of(repr(parts))

    def decode(self, say: Notify) -> Decoded:
        store = self.store(say)
        labels = store.index.label.astype(np.int64)
        every = np.arange(len(store))
        inputs, bad = EncodedPictures(store, self.shown()).tried(every, say)
        self.refuse_broken(sorted(bad.values()), store, say)
        splits = self._splits(store, sorted(bad))
        return Decoded(inputs, labels, splits, store.index.facts.classes)

    def _splits(self, store: Store, bad: Sequence[int] = ()) -> NDArray[np.uint8]:
        """As the set brings them."""
        split = store.index.split.copy()
        usable = (store.index.height >= 0) & ~_untold(store)
        usable[list(bad)] = False
        split[split == NO_SPLIT] = TRAIN
        split[~usable] = NO_SPLIT
        if not store.index.facts.classes:
            raise DataError(
                f"{self.root}: no image has a label. Those of validation and test need one; say "
                "where they are: test_root."
            )
        if not (split == TRAIN).any():
            raise DataError(
                f"{self.root}: all images are of {', '.join(store.index.facts.splits)}; there are "
                "none to train on."
            )
        return split

    def _shares(self) -> tuple[float, float]:
        return self.validation_share, self.test_share


def _untold(store: Store) -> NDArray[np.bool_]:
    """Images of validation and test without a label: nothing could be said of an answer."""
    split = store.index.split
    return (store.index.label == NO_LABEL) & ((split == VALIDATION) | (split == TEST))


def expanded(roots: Roots) -> list[str]:
    """Each place that is meant; paths are made absolute.

    Raises:
        DataError: a pattern finds nothing.
    """
    places = []
    for pattern in map(located, [roots] if isinstance(roots, str) else roots):
        for place in _without_braces(pattern):
            places += _found(place)
    return places


def _without_braces(pattern: str) -> list[str]:
    """`{000..002}` and `{a,b}` written out, as a shell does."""
    found = _BRACES.search(pattern)
    if found is None:
        return [pattern]
    first, dots, last = found.group(1).partition("..")
    if dots and first.isdecimal() and last.isdecimal():
        numbers = range(int(first), int(last) + 1)
        items = [str(number).zfill(len(first)) for number in numbers]
    else:
        items = found.group(1).split(",")
    before, after = pattern[: found.start()], pattern[found.end() :]
    return [one for item in items for one in _without_braces(f"{before}{item}{after}")]


def _found(place: str) -> list[str]:
    if remote.is_url(place):
        if "*" not in place:
            return [place]
        with reading(place):
            found = remote.matches(place)
    else:
        path = os.path.abspath(os.path.expanduser(place))
        if os.path.exists(path) or not glob.has_magic(place):
            return [str(Path(path).resolve())]
        found = glob.glob(path)
    if not found:
        raise DataError(f"{place} finds nothing.")
    return sorted(found)


def class_of(said: object) -> str | None:
    """The class that a table says; numbers are whole however they are kept.

    Raises:
        DataError: it says several.
    """
    if said is None or said != said:  # noqa: PLR0124  # not a number
        return None
    if isinstance(said, list | tuple | dict):
        raise DataError(
            f"has {said!r} as a label, and an image has one class. Say which column has it: "
            "data.label_column=NAME"
        )
    if isinstance(said, float) and said.is_integer():
        return str(int(said))
    text = said.decode("utf-8", "replace") if isinstance(said, bytes) else str(said)
    return composed(text.strip()) or None
