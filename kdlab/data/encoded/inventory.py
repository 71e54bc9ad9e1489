"""The images that a walk through a data set finds, and a description of every other file."""

import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from kdlab.data.encoded.formats import hidden, remedy, suffix_of

_NAMED = 5  # files in a line
HIDDEN = "left out, hidden or a system's"


class FoundImage(NamedTuple):
    """One encoded image: where it lies, its class and its split."""

    holder: int
    name: str  # path inside the holder
    start: int
    packed: int
    size: int
    crc: int = -1
    label: str | None = None
    split: int | None = None


@dataclass(slots=True)
class FileGroup:
    """Files with the same remark."""

    files: int = 0
    names: dict[str, None] = field(default_factory=dict)  # of the first files or folders


@dataclass(slots=True)
class Inventory:
    """Images, their holders, and the files that are left out."""

    images: list[FoundImage] = field(default_factory=list)
    holders: list[str] = field(default_factory=list)  # paths and URLs, by number
    # Path or URL -> its stamp, which changes with its content.
    stamps: dict[str, list[int]] = field(default_factory=dict)
    # Classes in their order; None: the labels of the images, sorted.
    classes: tuple[str, ...] | None = None
    others: Counter[str] = field(default_factory=Counter)  # files that are no images
    # Files that are left out, or are not what they seem, by remark.
    groups: dict[str, FileGroup] = field(default_factory=dict)
    splits: dict[str, int] = field(default_factory=dict)  # by the names that set them

    def put_in(self, split: int, first: int, name: str) -> None:
        """Assign a split, set by a file or folder `name`, to all images from number `first` on."""
        self.images[first:] = [image._replace(split=split) for image in self.images[first:]]
        self.splits[name] = split

    def put(self, group: str, name: str, files: int = 1) -> None:
        """Count files under a remark; `name` is that of the file, or of its folder."""
        entry = self.groups.setdefault(group, FileGroup())
        entry.files += files
        if len(entry.names) <= _NAMED:
            entry.names[name] = None

    def leave(self, name: str) -> None:
        """Count a file that is left out."""
        left_by = hidden(name)
        if left_by is None:
            self.others[suffix_of(name)] += 1
        else:
            self.put(HIDDEN, left_by)

    def notes(self) -> tuple[str, ...]:
        """Describe every file, in lines of text."""
        suffixes = Counter(suffix_of(image.name) for image in self.images)
        inside = suffixes.pop("", 0)  # of tables and files without a suffix
        files = {os.path.dirname(image.name) for image in self.images} if inside else ()
        read = [f"{count:,} {suffix}" for suffix, count in suffixes.most_common()]
        if inside:
            word = "file" if len(files) == 1 else "files"
            read.insert(0, f"{inside:,} images in {len(files):,} {word}")
        left = [
            f"{count:,} {suffix or 'without a suffix'}{remedy(suffix)}"
            for suffix, count in self.others.most_common()
        ]
        first = f"{', '.join(read) or 'no image'} read"
        first += f"; {', '.join(left)} left out" if left else ""
        groups = (
            f"{what}: {g.files:,} ({first_of(g.names)})" for what, g in self.groups.items()
        )
        return (first, *groups)


def first_of(names: Iterable[str]) -> str:
    """The first names, joined by commas."""
    every = list(names)
    return ", ".join(every[:_NAMED]) + (" ..." if len(every) > _NAMED else "")
