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
    """Label and split of the images that lie directly in a folder."""

    label: str | None = None
    split_name: str | None = None  # name of the folder that sets the split
    left: str = ""  # reason why they are left out


def lay_out(inventory: Inventory, first: int) -> None:
    """Assign class and split to images from number `first` on; those of no class are left out."""
    images = inventory.images[first:]
    places = _places({os.path.dirname(image.name) for image in images})
    del inventory.images[first:]
    for image in images:
        folder = os.path.dirname(image.name)
        label, split_name, left = places[folder]
        if left:
            inventory.put(left, image.name if left == _STRAY else f"{folder}/")
            continue
        split = None if split_name is None else SPLITS[split_name.lower()]
        inventory.images.append(image._replace(label=label, split=split))
    split_names = {
        place.split_name for place in places.values() if place.split_name is not None
    }
    inventory.splits |= {f"{name}/": SPLITS[name.lower()] for name in split_names}
    _note_joined(places, inventory)


def _places(folders: Iterable[str]) -> dict[str, Place]:
    """Place of each folder: [...]/train/[...]/CLASS, or CLASS/train, or CLASS alone."""
    parts = {folder: tuple(filter(None, folder.split("/"))) for folder in folders}
    above_of = {folder: _first_split(names[:-1]) for folder, names in parts.items()}
    ends = {folder for folder, names in parts.items() if names and _first_split(names[-1:])}
    ends = {folder for folder in ends if above_of[folder] is None}
    above = any(above_of.values())
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
    used = [*filter(None, above_of.values()), *(parts[folder][-1] for folder in ends)]
    kinds = {SPLITS[name.lower()] for name in used}
    straight = ends if above or len(kinds) > 1 else set[str]()  # else a class of that name
    names_of_all = sorted(
        {f"{name}/" for name in used}, key=lambda name: SPLITS[name[:-1].lower()]
    )
    beside = f"left out, beside {', '.join(names_of_all)}"

    def place(folder: str) -> Place:
        if not folder or folder in straight:
            return Place(left=_STRAY)
        if above and above_of[folder] is None and TRAIN in kinds and len(kinds) > 1:
            return Place(left=beside)
        return Place(composed(parts[folder][-1]), above_of[folder])

    return {folder: place(folder) for folder in parts}


def _split_last(names: tuple[str, ...]) -> Place:
    if len(names) < 2:
        return Place(left=_STRAY)
    return Place(composed(names[-2]), names[-1])


def _first_split(names: Iterable[str]) -> str | None:
    return next((name for name in names if name.lower() in SPLITS), None)


def composed(name: str) -> str:
    """Normalise accents to NFC; macOS writes them decomposed."""
    return unicodedata.normalize("NFC", name)


def _note_joined(places: Mapping[str, Place], inventory: Inventory) -> None:
    """Note folders of equal name in different places: they become one class, maybe by mistake."""
    rests = defaultdict[str, set[str]](set)
    for folder, place in places.items():
        if place.label is not None:
            bare = (name for name in folder.split("/") if name.lower() not in SPLITS)
            rests[place.label].add("/".join(bare))
    for folders in rests.values():
        if len(folders) > 1:
            names = " + ".join(sorted(folders)[:_NAMED])
            inventory.put("one class, folders of one name", names, len(folders))


def split_of(place: str) -> str | None:
    """The word for the split in a file's name, such as train-000.tar, or in that of a folder."""
    *folders, last = place.split("/")
    words = re.split(r"[^A-Za-z]+", last) if "." in last else [last]
    return _first_split((*words, *folders))
