"""WebDataset shards, read where they lie: `KEY.jpg` beside `KEY.cls` or `KEY.json` in tar files."""

import json
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from tarfile import TarError

from kdlab.config import register
from kdlab.data.encoded.holders import Holder, look, opened
from kdlab.data.encoded.index import FoundImage, Inventory
from kdlab.data.encoded.walk import Entry, is_image, split_in, tar_entries
from kdlab.data.image_files import ImageFiles
from kdlab.errors import DataError

_LARGEST = 1 << 20  # bytes beside an image


@register("data/webdataset")
@dataclass(frozen=True, kw_only=True)
class WebDataset(ImageFiles):
    """WebDataset shards: uncompressed tar files, any number, never unpacked.

    root: shards, such as train-{000..146}.tar; the split of one whose name has train, val or test
        in it is that.
    label: the file beside an image that has its class: `cls`, `txt`, or `json.NAME` for an entry
        of KEY.json; null leaves the images without labels.
    classes: names of classes that are numbers, from 0 on.
    """

    label: str | None = "cls"
    classes: tuple[str, ...] = ()

    def find(self, root: str, found: Inventory) -> None:
        number = len(found.holders)
        found.holders.append(root)
        suffix, _, entry = (self.label or "").partition(".")
        try:
            seen = found.looks[root] = look(root)
            with closing(opened(root, seen)) as holder, holder.stream() as raw:
                for key, files in _samples(tar_entries(root, raw)):
                    image = next((e for name, e in files.items() if is_image(name)), None)
                    if image is None:
                        continue
                    said = _said(root, key, holder, files, suffix, entry, self.classes)
                    name, start, packed, size, crc = image
                    found.images.append(
                        FoundImage(
                            number, name, start, packed, size, crc, said, split_in(root)
                        )
                    )
        except FileNotFoundError as error:
            raise DataError(f"{root} does not exist.") from error
        except TarError as error:
            raise DataError(f"{root} is not a readable tar file: {error}.") from error
        except OSError as error:
            raise DataError(f"{root} cannot be read: {error}.") from error
        if all(image.holder != number for image in found.images):
            raise DataError(f"{root} holds no images.")
        if self.classes:
            found.classes = self.classes


def _samples(entries: Iterator[Entry]) -> Iterator[tuple[str, dict[str, Entry]]]:
    """Files that follow each other and have one name up to its first dot: (key, by name)."""
    key, files = "", dict[str, Entry]()
    for entry in entries:
        head, slash, last = entry[0].rpartition("/")
        own = head + slash + last.partition(".")[0]
        if own != key and files:
            yield key, files
            files = {}
        key = own
        files[entry[0]] = entry
    if files:
        yield key, files


def _said(
    root: str,
    key: str,
    holder: Holder,
    files: dict[str, Entry],
    suffix: str,
    entry: str,
    classes: tuple[str, ...],
) -> str | None:
    """The class of a sample, by the file beside its image."""
    if not suffix:
        return None
    beside = files.get(f"{key}.{suffix}")
    if beside is None:
        has = ", ".join(name.removeprefix(key) for name in files)
        raise DataError(
            f"{root}: {key} has no .{suffix} beside its image, but {has}. Say which file has the "
            "class: data.label=json.NAME, or data.label=null if none has."
        )
    if beside[3] > _LARGEST:
        raise DataError(
            f"{root}: {key}.{suffix} has {beside[3]:,} bytes, which no label has."
        )
    raw = holder.part(beside[1], beside[3])
    said: object = raw.decode("utf-8", "replace").strip()
    if entry:
        try:
            said = json.loads(raw)[entry]
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(f"{root}: {key}.{suffix} has no entry {entry}.") from error
    text = str(said)
    if not classes:
        return text
    if text.isdecimal() and int(text) < len(classes):
        return classes[int(text)]
    if text in classes:
        return text
    raise DataError(f"{root}: {key} is of class {text}, which `classes` does not name.")
