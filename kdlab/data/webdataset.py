"""WebDataset shards, read where they lie: `KEY.jpg` beside `KEY.cls` or `KEY.json` in tar files."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass

from kdlab.codec import MessageError, from_json
from kdlab.config import register
from kdlab.data.encoded.formats import hidden
from kdlab.data.encoded.holders import Holder, open_holder, reading
from kdlab.data.encoded.inventory import FoundImage, Inventory
from kdlab.data.encoded.walk import Entry, files_in, is_image, tar_entries
from kdlab.data.image_files import ImageFiles, class_of
from kdlab.errors import DataError

_LARGEST = 1 << 20  # bytes of a label file


@register("data/webdataset")
@dataclass(frozen=True, kw_only=True)
class WebDataset(ImageFiles):
    """WebDataset shards: uncompressed tar files, any number, never unpacked.

    root: shards, such as train-{000..146}.tar, or a folder of them. Names of files and of folders
        that have train, val or test in them set the split.
    label: the file beside an image that has its class: `cls`, `txt`, or `json.NAME` for an entry
        of KEY.json; null leaves the images without labels.
    classes: names of classes that are numbers, from 0 on.
    """

    label: str | None = "cls"
    classes: tuple[str, ...] = ()

    def find(self, root: str, inventory: Inventory) -> None:
        for place, inside in files_in(root, inventory, (".tar",)):
            with reading(place):
                self._shard(place, inside, inventory)
        if self.classes:
            inventory.classes = self.classes

    def _shard(self, root: str, inside: str, inventory: Inventory) -> None:
        number, before = len(inventory.holders), len(inventory.images)
        errors = dict[str, DataError]()
        inventory.holders.append(root)
        stamp = inventory.stamps[root]
        with closing(open_holder(root, stamp)) as holder, holder.stream() as raw:
            for key, files in _samples(tar_entries(root, raw), inventory):
                image = next((e for name, e in files.items() if is_image(name)), None)
                if image is None:
                    inventory.put("left out, a sample without an image", f"{inside}: {key}")
                    continue
                try:
                    text = self._read_label(root, key, holder, files)
                except DataError as error:
                    errors[key] = error
                    continue
                label = self._class_name(root, key, text)
                inventory.images.append(FoundImage(number, *image, label))
        if errors and len(inventory.images) == before:
            raise next(iter(errors.values()))
        for key in errors:
            inventory.put(
                f"left out, a sample without its label ({self.label})", f"{inside}: {key}"
            )

    def _read_label(
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
                f"{root}: {key} has no .{suffix} beside its image, but {has}. Name the file with "
                "the class: data.label=json.NAME, or data.label=null if there is none."
            )
        if beside[3] > _LARGEST:
            raise DataError(
                f"{root}: {key}.{suffix} has {beside[3]:,} bytes, which no label has."
            )
        raw = holder.part(beside[1], beside[3])
        value: object = raw
        if entry:
            try:
                value = from_json(dict[str, object], raw)[entry]
            except (KeyError, MessageError) as error:
                raise DataError(f"{root}: {key}.{suffix} has no entry {entry}.") from error
        text = class_of(value)
        if text is None:
            raise DataError(f"{root}: {key}.{suffix} is empty.")
        return text

    def _class_name(self, root: str, key: str, label: str | None) -> str | None:
        if label is None or not self.classes or label in self.classes:
            return label
        if label.isdecimal() and int(label) < len(self.classes):
            return self.classes[int(label)]
        raise DataError(f"{root}: {key} has class {label}, which `classes` does not name.")


def _samples(
    entries: Iterator[Entry], inventory: Inventory
) -> Iterator[tuple[str, dict[str, Entry]]]:
    """Key of each sample and its files by name: consecutive files, equal up to the first dot."""
    key, files = "", dict[str, Entry]()
    for entry in entries:
        if hidden(entry[0]) is not None:
            inventory.leave(entry[0])
            continue
        head, slash, last = entry[0].rpartition("/")
        stem, dot, suffix = last.partition(".")
        prefix = head + slash + stem
        if prefix != key and files:
            yield key, files
            files = {}
        key = prefix
        files[f"{prefix}{dot}{suffix.lower()}"] = entry
    if files:
        yield key, files
