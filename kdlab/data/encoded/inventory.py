"""What a walk finds: the images of a set, and in words every file that is none of them."""

import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from kdlab.data.encoded.formats import hidden, remedy, suffix_of

_NAMED = 5  # files in a line
HIDDEN = "left out, hidden or a system's"


class FoundImage(NamedTuple):
    """One encoded image, as a walk finds it."""

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
    """Files of which the same is said."""

    files: int = 0
    names: dict[str, None] = field(default_factory=dict)  # the first, files' or folders'


@dataclass(slots=True)
class Inventory:
    """What a walk finds."""

    images: list[FoundImage] = field(default_factory=list)
    holders: list[str] = field(default_factory=list)  # paths and URLs, by number
    # Path or URL -> its look: what it was made from, and what changes when that does.
    looks: dict[str, list[int]] = field(default_factory=dict)
    # Classes in their order; None: those that were found, sorted.
    classes: tuple[str, ...] | None = None
    others: Counter[str] = field(default_factory=Counter)  # files that are no images
    # Files that are left out, or are not what they seem: by what is said of them.
    groups: dict[str, FileGroup] = field(default_factory=dict)
    splits: dict[str, int] = field(default_factory=dict)  # names that say one, as written

    def put_in(self, split: int, first: int, told_by: str) -> None:
        """All images from number `first` on are of this split, as a name says."""
        self.images[first:] = [one._replace(split=split) for one in self.images[first:]]
        self.splits[told_by] = split

    def put(self, group: str, name: str, files: int = 1) -> None:
        """Count files in a group; `name` is their own, or that of the folder they lie in."""
        own = self.groups.setdefault(group, FileGroup())
        own.files += files
        if len(own.names) <= _NAMED:
            own.names[name] = None

    def leave(self, name: str) -> None:
        """Count a file that is no image of the set."""
        left_by = hidden(name)
        if left_by is None:
            self.others[suffix_of(name)] += 1
        else:
            self.put(HIDDEN, left_by)

    def notes(self) -> tuple[str, ...]:
        """Every file, in words."""
        suffixes = Counter(suffix_of(one.name) for one in self.images)
        inside = suffixes.pop("", 0)  # of tables and files without a suffix
        files = {os.path.dirname(one.name) for one in self.images} if inside else ()
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
    """The first of them."""
    every = list(names)
    return ", ".join(every[:_NAMED]) + (" ..." if len(every) > _NAMED else "")
