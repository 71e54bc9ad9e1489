"""WebDataset shards, read where they lie: `KEY.jpg` beside `KEY.cls` or `KEY.json` in tar files."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass

from kdlab.codec import MessageError, from_json
from kdlab.config import register
from kdlab.data.encoded.formats import hidden
from kdlab.data.encoded.holders import Holder, opened, reading
from kdlab.data.encoded.inventory import FoundImage, Inventory
from kdlab.data.encoded.walk import Entry, files_in, is_image, tar_entries
from kdlab.data.image_files import ImageFiles, class_of
from kdlab.errors import DataError

_LARGEST = 1 << 20  # bytes beside an image


@register("data/webdataset")
@dataclass(frozen=True, kw_only=True)
class WebDataset(ImageFiles):
    """WebDataset shards: uncompressed tar files, any number, never unpacked.

    root: shards, such as train-{000..146}.tar, or a folder of them. Names of files and of folders
        that have train, val or test in them say the split.
    label: the file beside an image that has its class: `cls`, `txt`, or `json.NAME` for an entry
        of KEY.json; null leaves the images without labels.
    classes: names of classes that are numbers, from 0 on.
    """

    label: str | None = "cls"
    classes: tuple[str, ...] = ()

    def find(self, root: str, found: Inventory) -> None:
        for place, inside in files_in(root, found, (".tar",)):
            with reading(place):
                self._shard(place, inside, found)
        if self.classes:
            found.classes = self.classes

    def _shard(self, root: str, inside: str, found: Inventory) -> None:
        number, before = len(found.holders), len(found.images)
        unsaid = dict[str, DataError]()
        found.holders.append(root)
        with closing(opened(root, found.looks[root])) as holder, holder.stream() as raw:
            for key, files in _samples(tar_entries(root, raw), found):
                image = next((e for name, e in files.items() if is_image(name)), None)
                if image is None:
                    found.put("left out, a sample without an image", f"{inside}: {key}")
                    continue
                try:
                    said = self._said(root, key, holder, files)
                except DataError as error:
                    unsaid[key] = error
                    continue
                label = self._class(root, key, said)
                found.images.append(FoundImage(number, *image, label))
        if unsaid and len(found.images) == before:
            raise next(iter(unsaid.values()))
        for key in unsaid:
            found.put(
                f"left out, a sample without its label ({self.label})", f"{inside}: {key}"
            )

    def _said(
        self, root: str, key: str, holder: Holder, files: dict[str, Entry]
    ) -> str | None:
        """The class of a sample, by the file beside its image."""
        suffix, _, entry = (self.label or "").partition(".")
        if not suffix:
            return None
        beside = files.get(f"{key}.{suffix.lower()}")
        if beside is None:
            has = ", ".join(name.removeprefix(key) for name in files)
            raise DataError(
                f"{root}: {key} has no .{suffix} beside its image, but {has}. Say which file has "
                "the class: data.label=json.NAME, or data.label=null if none has."
            )
        if beside[3] > _LARGEST:
            raise DataError(
                f"{root}: {key}.{suffix} has {beside[3]:,} bytes, which no label has."
            )
        raw = holder.part(beside[1], beside[3])
        said: object = raw
        if entry:
            try:
                said = from_json(dict[str, object], raw)[entry]
            except (KeyError, MessageError) as error:
                raise DataError(f"{root}: {key}.{suffix} has no entry {entry}.") from error
        text = class_of(said)
        if text is None:
            raise DataError(f"{root}: {key}.{suffix} is empty.")
        return text

    def _class(self, root: str, key: str, said: str | None) -> str | None:
        if said is None or not self.classes or said in self.classes:
            return said
        if said.isdecimal() and int(said) < len(self.classes):
            return self.classes[int(said)]
        raise DataError(f"{root}: {key} is of class {said}, which `classes` does not name.")


def _samples(
    entries: Iterator[Entry], found: Inventory
) -> Iterator[tuple[str, dict[str, Entry]]]:
    """Files that follow each other and have one name up to its first dot: (key, by name)."""
    key, files = "", dict[str, Entry]()
    for entry in entries:
        if hidden(entry[0]) is not None:
            found.leave(entry[0])
            continue
        head, slash, last = entry[0].rpartition("/")
        stem, dot, suffix = last.partition(".")
        own = head + slash + stem
        if own != key and files:
            yield key, files
            files = {}
        key = own
        files[f"{own}{dot}{suffix.lower()}"] = entry
    if files:
        yield key, files
