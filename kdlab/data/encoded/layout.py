"""Class and split of images by the folders they lie in, whatever the order of these."""

import os
import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from kdlab.data.encoded.inventory import Inventory
from kdlab.data.splits import TEST, TRAIN, VALIDATION

SPLITS = {
    "train": TRAIN, "training": TRAIN, "val": VALIDATION, "valid": VALIDATION,
    "validation": VALIDATION, "test": TEST, "testing": TEST,
}  # fmt: skip
_STRAY = "left out, in no class folder"
_NAMED = 3  # folders of a class


class Place(NamedTuple):
    """What a folder says of the images that lie straight in it."""

    label: str | None = None
    told_by: str | None = None  # name of the folder that says the split
    left: str = ""  # why they are left out


def lay_out(found: Inventory, first: int) -> None:
    """Give images from number `first` on their class and split; those of no class are left out."""
    images = found.images[first:]
    places = _places({os.path.dirname(one.name) for one in images})
    del found.images[first:]
    for one in images:
        folder = os.path.dirname(one.name)
        label, told_by, left = places[folder]
        if left:
            found.put(left, one.name if left == _STRAY else f"{folder}/")
            continue
        split = None if told_by is None else SPLITS[told_by.lower()]
        found.images.append(one._replace(label=label, split=split))
    told = {place.told_by for place in places.values() if place.told_by is not None}
    found.splits |= {f"{name}/": SPLITS[name.lower()] for name in told}
    _say_joined(places, found)


def _places(folders: Iterable[str]) -> dict[str, Place]:
    """By folder: [...]/train/[...]/CLASS, or CLASS/train, or CLASS alone."""
    parts = {folder: tuple(filter(None, folder.split("/"))) for folder in folders}
    told = {folder: _first_split(names[:-1]) for folder, names in parts.items()}
    ends = {folder for folder, names in parts.items() if names and _first_split(names[-1:])}
    ends = {folder for folder in ends if told[folder] is None}
    above = any(told.values())
    rest = {folder for folder in parts if folder} - ends
    kinds_of_ends = {SPLITS[parts[folder][-1].lower()] for folder in ends}
    # CLASS/train and CLASS/test, with strays in CLASS
    within = all(len(parts[folder]) > 1 for folder in ends) and len(kinds_of_ends) > 1
    if not above and (
        not rest or (within and rest <= {f.rpartition("/")[0] for f in ends})
    ):
        return {
            folder: Place(left=_STRAY) if folder in rest else _split_last(names)
            for folder, names in parts.items()
        }
    said = [*filter(None, told.values()), *(parts[folder][-1] for folder in ends)]
    kinds = {SPLITS[name.lower()] for name in said}
    straight = ends if above or len(kinds) > 1 else set[str]()  # else a class of that name
    names_of_all = sorted(
        {f"{name}/" for name in said}, key=lambda name: SPLITS[name[:-1].lower()]
    )
    beside = f"left out, beside {', '.join(names_of_all)}"

    def place(folder: str) -> Place:
        if not folder or folder in straight:
            return Place(left=_STRAY)
        if above and told[folder] is None and TRAIN in kinds and len(kinds) > 1:
            return Place(left=beside)
        return Place(composed(parts[folder][-1]), told[folder])

    return {folder: place(folder) for folder in parts}


def _split_last(names: tuple[str, ...]) -> Place:
    if len(names) < 2:
        return Place(left=_STRAY)
    return Place(composed(names[-2]), names[-1])


def _first_split(names: Iterable[str]) -> str | None:
    return next((name for name in names if name.lower() in SPLITS), None)


def composed(name: str) -> str:
    """One spelling of accents: a Mac writes them apart."""
    return unicodedata.normalize("NFC", name)


def _say_joined(places: Mapping[str, Place], found: Inventory) -> None:
    """Folders of one name in unlike folders are one class, which may not be meant."""
    rests = defaultdict[str, set[str]](set)
    for folder, place in places.items():
        if place.label is not None:
            bare = (name for name in folder.split("/") if name.lower() not in SPLITS)
            rests[place.label].add("/".join(bare))
    for folders in rests.values():
        if len(folders) > 1:
            names = " + ".join(sorted(folders)[:_NAMED])
            found.put("one class, folders of one name", names, len(folders))


def split_of(place: str) -> str | None:
    """The word that says the split of a file: in its name, such as train-000.tar, or a folder's."""
    *folders, last = place.split("/")
    words = re.split(r"[^A-Za-z]+", last) if "." in last else [last]
    return _first_split((*words, *folders))
