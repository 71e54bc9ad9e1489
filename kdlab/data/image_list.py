"""Images listed in a table: CSV, TSV or parquet with a path, a label and a split in each row."""

import csv
import io
import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

from kdlab.codec import Amount, Count, MessageError, from_builtins
from kdlab.config import register
from kdlab.config.seal import DamagedFolder, check, sealed
from kdlab.data.encoded import remote
from kdlab.data.encoded.holders import read_file, read_stamp, reading
from kdlab.data.encoded.inventory import FoundImage, Inventory, first_of
from kdlab.data.encoded.layout import SPLITS, lay_out
from kdlab.data.encoded.walk import TARS, walk
from kdlab.data.image_files import ImageFiles, class_of, expanded
from kdlab.data.parquet import batches, column, needed
from kdlab.data.splits import NAMES
from kdlab.errors import DataError

TABLE, ARCHIVE = "images.csv", "images.zip"  # files that `kdlab data --store` writes
LONGEST = {"JPEG": 65_500, "WEBP": 16_383}  # pixels of a side; libjpeg-turbo, libwebp
_PATHS = ("path", "file", "file_name", "filename", "image", "image_path", "filepath")
_LABELS = ("label", "class", "target", "class_name", "category")
_PARTS = ("split", "set", "subset", "partition")
_LARGEST = 1 << 30  # bytes of a table
_ROWS, _GROWS = 64, 100  # of a parquet table: rows at a time; unpacked over packed bytes


@dataclass(frozen=True, slots=True)
class Reencoded:
    """Facts of a set that `kdlab data --store` wrote, in the seal beside its table."""

    reencoded: str  # digest of the original's names, sizes, checksums and labels
    classes: tuple[str, ...]  # in the original's order
    images: Count
    size: Count  # pixels of a side of the views it is for
    side: Count  # pixels of the shorter side
    form: str  # `JPEG 85` or `WebP lossless`
    bytes_before: Count
    bytes_after: Count
    psnr_db: Amount | None  # of resized images, median of a sample; None: lossless
    larger: Count = 0  # images with more bytes than their originals
    as_png: Count = 0  # images too long for `form`

    def __str__(self) -> str:
        cost = "" if self.psnr_db is None else f", {self.psnr_db:.1f} dB PSNR"
        if self.as_png:
            most = LONGEST[self.form.partition(" ")[0].upper()]
            cost += f", {self.as_png:,} as PNG (a side has more than {most:,} pixels)"
        if self.larger:
            cost += f", {self.larger:,} in more bytes than the original"
        return (
            f"encoded anew from {self.reencoded}, for views of {self.size} pixels: shorter side "
            f"{self.side}, {self.form}{cost}"
        )


def reencoded(table: str) -> Reencoded | None:
    """Facts of the set of a table, after its files are verified; None for any other table.

    Raises:
        DataError: a file has changed.
    """
    folder = Path(table).parent
    if Path(table).name != TABLE or "://" in table or not sealed(folder):
        return None
    try:
        return from_builtins(Reencoded, check(folder, hashes=True))
    except (DamagedFolder, MessageError) as error:
        raise DataError(
            f"{folder}, written by `kdlab data --store`, is damaged: {error}. Write it again."
        ) from error


@register("data/image_list")
@dataclass(frozen=True, kw_only=True)
class ImageList(ImageFiles):
    """Images of any layout, listed in a table: a path, a label and optionally a split.

    root: a .csv, .tsv or .parquet file with a row for each image, or a .txt file with a path in
        each line. An image with an empty label is trained on with soft labels alone.
    images: the folder, zip, tar or URL that paths are relative to; null is the table's folder, or
        the zip that `kdlab data --store` wrote with it.
    path_column: null takes path, file, file_name, filename or image.
    label_column: null takes label, class, target or category; without any, labels are the paths'
        folders.
    split_column: null takes split or set; values are train, validation and test.
    """

    images: str | None = None
    path_column: str | None = None
    label_column: str | None = None
    split_column: str | None = None

    def find(self, root: str, inventory: Inventory) -> None:
        written = reencoded(root)
        rows = list(_rows(root))
        if not rows:
            raise DataError(f"{root} has no rows.")
        names = tuple(rows[0])
        path = column(root, names, self.path_column, _PATHS)
        path = path or needed(root, names, "the paths of images", "path_column")
        label = column(root, names, self.label_column, _LABELS)
        part = column(root, names, self.split_column, _PARTS)
        inventory.stamps[root] = read_stamp(root)
        images = _NamedImages(self._base(root, written), inventory)
        first = len(inventory.images)
        if written is not None:
            inventory.put(str(written), root, written.images)
            inventory.classes = written.classes if len(self.roots()) == 1 else None
        listed, missing = dict[str, FoundImage](), list[str]()
        for row in rows:
            name = str(row[path] or "")
            image = images.image(name) or images.image(name.strip())
            if image is None:
                missing.append(name)
                continue
            try:
                class_name = (
                    class_of(row[label])
                    if label
                    else os.path.basename(os.path.dirname(name))
                )
            except DataError as error:
                raise DataError(f"{root}: {name} {error}") from error
            split = None if part is None else _split(root, row[part], inventory)
            image = image._replace(label=class_name or None, split=split)
            earlier = listed.setdefault(os.path.normpath(image.name), image)
            _refuse_twice(root, earlier, image, inventory)
        if missing:
            raise DataError(
                f"{len(missing)} of {len(rows)} images that {root} lists are not in {images.base}: "
                f"{first_of(missing)}. Set `images` to where they lie."
            )
        inventory.images += listed.values()
        if label is None and part is None and not any(map(os.path.isabs, listed)):
            lay_out(inventory, first)  # of a list of paths alone the folders are the labels

    def _base(self, root: str, written: Reencoded | None) -> str:
        base = os.path.dirname(root)
        if self.images is None:
            return base if written is None else os.path.join(base, ARCHIVE)
        relative = not (remote.is_url(self.images) or os.path.isabs(self.images))
        (base,) = expanded(os.path.join(base, self.images) if relative else self.images)
        return base


def _refuse_twice(
    root: str, earlier: FoundImage, image: FoundImage, inventory: Inventory
) -> None:
    """Refuse a second row for an image with another class or split; note an equal one."""
    if image is earlier:
        return
    if (earlier.label, earlier.split) != (image.label, image.split):
        both = " and ".join(
            f"{one.label or 'no label'}{'' if one.split is None else f', {NAMES[one.split]}'}"
            for one in (earlier, image)
        )
        raise DataError(
            f"{root} lists {image.name} twice, as {both}. An image has one class and is of one "
            "split; nothing was started."
        )
    inventory.put("left out, a row that lists an image again", image.name)


class _NamedImages:
    """Images of a folder, archive or URL, by the names in a table."""

    def __init__(self, base: str, inventory: Inventory) -> None:
        self.base, self.number = base, len(inventory.holders)
        self.inside: dict[str, FoundImage] | None = None  # by name, of an archive or a URL
        if remote.is_url(base) or base.lower().endswith((*TARS, ".zip")):
            contents = Inventory(holders=list(inventory.holders))
            walk(base, contents, bare=True)
            self.inside = {image.name: image for image in contents.images}
            inventory.stamps.update(contents.stamps)
        inventory.holders.append(base)

    def image(self, name: str) -> FoundImage | None:
        """The image of a name; None where there is none."""
        if self.inside is not None:
            return self.inside.get(os.path.normpath(name))
        try:
            status = os.stat(os.path.join(self.base, name))
        except (OSError, ValueError):  # a path with a zero byte
            return None
        if not stat.S_ISREG(status.st_mode):
            return None
        size = status.st_size
        return FoundImage(self.number, name, -1, size, size)


def _rows(root: str) -> Iterator[Mapping[str, object]]:
    suffix = os.path.splitext(root)[1].lower()
    with reading(root):
        far = remote.is_url(root)
        raw = remote.read_whole(root, _LARGEST) if far else read_file(Path(root), _LARGEST)
        lines = io.TextIOWrapper(io.BytesIO(raw), "utf-8-sig", newline="")
        if suffix == ".parquet":
            from pyarrow.parquet import ParquetFile

            table = ParquetFile(io.BytesIO(raw))
            names = table.schema_arrow.names
            for batch in batches(root, table, len(raw), names, rows=_ROWS, grows=_GROWS):
                yield from batch.to_pylist()
        elif suffix == ".txt":
            yield from ({"path": line.rstrip("\r\n")} for line in lines if line.strip())
        elif suffix in (".csv", ".tsv"):
            head = lines.readline()
            lines.seek(0)
            comma = ";" if head.count(";") > head.count(",") else ","
            yield from _named(
                csv.reader(lines, delimiter="\t" if suffix == ".tsv" else comma)
            )
        else:
            raise DataError(f"{root} is no table: give a .csv, .tsv, .parquet or .txt.")


def _named(lines: Iterator[list[str]]) -> Iterator[Mapping[str, object]]:
    """Rows as mappings from the names in the first line; further cells are dropped."""
    names = [name.strip() for name in next(lines, [])]
    for cells in filter(None, lines):
        yield dict(zip_longest(names, cells[: len(names)], fillvalue=""))


def _split(root: str, value: object, inventory: Inventory) -> int | None:
    text = "" if value is None else str(value).strip()
    if not text:
        return None
    split = SPLITS.get(text.lower())
    if split is None:
        raise DataError(f"{root}: split {value!r} is none of {', '.join(sorted(SPLITS))}.")
    inventory.splits[text] = split
    return split
