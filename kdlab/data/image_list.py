"""Images that a table names: CSV, TSV or parquet with a path, a label and a split in each row."""

import csv
import io
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from kdlab.config import register
from kdlab.data.encoded import remote
from kdlab.data.encoded.holders import look, read_file
from kdlab.data.encoded.index import FoundImage, Inventory
from kdlab.data.encoded.walk import SPLITS, TARS, walk
from kdlab.data.image_files import ImageFiles, class_of, expanded
from kdlab.data.parquet import batches
from kdlab.errors import DataError

_PATHS = ("path", "file", "file_name", "filename", "image", "image_path", "filepath")
_LABELS = ("label", "class", "target", "class_name", "category")
_PARTS = ("split", "set", "subset", "partition")
_LARGEST = 1 << 30  # bytes of a table
_ROWS, _GROWS = 64, 100  # of a parquet table at a time; times its bytes that paths may have
_NAMED = 5  # missing images in a message


@register("data/image_list")
@dataclass(frozen=True, kw_only=True)
class ImageList(ImageFiles):
    """Images of any layout, listed in a table: a path, a label and, if there is one, a split.

    root: a .csv, .tsv or .parquet file with a row for each image, or a .txt file with a path in
        each line. An empty label leaves an image without one: it is trained on with soft labels.
    images: the folder, zip, tar or URL that paths are relative to; null is the table's folder.
    path_column: null takes path, file, file_name, filename or image.
    label_column: null takes label, class, target or category; without any, labels are the paths'
        folders.
    split_column: null takes split or set; values are train, validation and test.
    """

    images: str | None = None
    path_column: str | None = None
    label_column: str | None = None
    split_column: str | None = None

    def find(self, root: str, found: Inventory) -> None:
        rows = list(_rows(root))
        if not rows:
            raise DataError(f"{root} has no rows.")
        columns = tuple(rows[0])
        path = _column(root, columns, self.path_column, _PATHS)
        label = _column(root, columns, self.label_column, _LABELS)
        part = _column(root, columns, self.split_column, _PARTS)
        if path is None:
            raise DataError(
                f"{root} has columns {', '.join(columns)}; which of them has the paths of images? "
                "Say it: data.path_column=NAME"
            )
        found.looks[root] = look(root)
        base = os.path.dirname(root)
        if self.images is not None:
            relative = not (remote.is_url(self.images) or os.path.isabs(self.images))
            (base,) = expanded(os.path.join(base, self.images) if relative else self.images)
        known = _Known(base, found)
        missing = []
        for row in rows:
            name = str(row[path] or "")
            image = known.image(name)
            if image is None:
                missing.append(name)
                continue
            said = row.get(label) if label else Path(name).parent.name
            split = None if part is None else _split(root, row.get(part))
            found.images.append(image._replace(label=class_of(said), split=split))
        if missing:
            named = ", ".join(missing[:_NAMED]) + (" ..." if len(missing) > _NAMED else "")
            raise DataError(
                f"{len(missing)} of {len(rows)} images that {root} lists are not in {base}: "
                f"{named}. `images` says where they lie."
            )


class _Known:
    """Images by the names that a table has for them."""

    def __init__(self, base: str, found: Inventory) -> None:
        self.base, self.number = base, len(found.holders)
        self.inside: dict[str, FoundImage] | None = None  # of an archive, or at a URL
        if remote.is_url(base) or base.lower().endswith((*TARS, ".zip")):
            all_of_it = Inventory(holders=list(found.holders))
            walk(base, all_of_it, lambda name: (None, None))
            self.inside = {image.name: image for image in all_of_it.images}
            found.looks.update(all_of_it.looks)
        found.holders.append(base)

    def image(self, name: str) -> FoundImage | None:
        """None: there is no such image."""
        if self.inside is not None:
            return self.inside.get(os.path.normpath(name))
        try:
            status = os.stat(os.path.join(self.base, name))
        except (OSError, ValueError):  # a path with a zero byte is none
            return None
        size = status.st_size
        return FoundImage(self.number, name, -1, size, size, -1, None, None)


def _rows(root: str) -> Iterator[Mapping[str, object]]:
    suffix = os.path.splitext(root)[1].lower()
    try:
        far = remote.is_url(root)
        raw = remote.read_whole(root, _LARGEST) if far else read_file(Path(root), _LARGEST)
        if suffix == ".parquet":
            from pyarrow.parquet import ParquetFile

            table = ParquetFile(io.BytesIO(raw))
            names = table.schema_arrow.names
            for batch in batches(root, table, len(raw), names, rows=_ROWS, grows=_GROWS):
                yield from batch.to_pylist()
            return
        text = raw.decode("utf-8-sig")
    except FileNotFoundError as error:
        raise DataError(f"{root} does not exist.") from error
    except (OSError, ValueError) as error:  # pyarrow's errors are ValueErrors
        raise DataError(f"{root} cannot be read: {error}") from error
    if suffix in (".csv", ".tsv"):
        delimiter = "\t" if suffix == ".tsv" else ","
        try:
            for row in csv.DictReader(text.splitlines(), delimiter=delimiter):
                row.pop(None, None)  # more than has a name
                yield row
        except csv.Error as error:
            raise DataError(f"{root} cannot be read: {error}") from error
    elif suffix == ".txt":
        yield from ({"path": line} for line in text.splitlines() if line.strip())
    else:
        raise DataError(f"{root} is no table: .csv, .tsv, .parquet or .txt.")


def _column(
    root: str, columns: tuple[str, ...], asked: str | None, usual: tuple[str, ...]
) -> str | None:
    if asked is not None and asked not in columns:
        raise DataError(f"{root} has no column {asked}; it has {', '.join(columns)}.")
    return asked or next((name for name in usual if name in columns), None)


def _split(root: str, said: object) -> int | None:
    if said in (None, ""):
        return None
    split = SPLITS.get(str(said).lower())
    if split is None:
        raise DataError(f"{root}: split {said!r} is none of {', '.join(sorted(SPLITS))}.")
    return split
