"""Images in Parquet files and in folders that Hugging Face `datasets` saved.

Arrow files are read where they lie: their images are plain bytes in them. Those of Parquet are
packed in pages, so they are copied once, one after the other, into a file on this machine.
"""

import shutil
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from kdlab.codec import MessageError, from_json
from kdlab.config import register
from kdlab.config.home import home, read_object, write_whole
from kdlab.config.kept import key_of
from kdlab.data.encoded import remote
from kdlab.data.encoded.holders import read_stamp, reading
from kdlab.data.encoded.inventory import FoundImage, Inventory
from kdlab.data.encoded.walk import files_in
from kdlab.data.image_files import ImageFiles, class_of
from kdlab.errors import DataError
from kdlab.lazy import lazy

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq
else:
    pa, pq = map(lazy, ("pyarrow", "pyarrow.parquet"))

_IMAGES = ("image", "img", "png", "jpg", "jpeg", "picture")
_LABELS = ("label", "labels", "fine_label", "class", "target", "cls")
_GROWS = 4  # unpacked over packed bytes: images are compressed already
_BEYOND = 6_000_000  # bytes beyond that, of any file
_ROW = 200  # bytes of the facts of an image, in memory
_ROWS, _AT_ONCE = 32, 1_000_000  # rows unpacked at a time, and their bytes
_DISK_SHARE = 0.9  # of what is free


@register("data/parquet")
@dataclass(frozen=True, kw_only=True)
class ParquetImages(ImageFiles):
    """Parquet files, or what `datasets` of Hugging Face saved or downloaded.

    root: .parquet or .arrow files, or a folder of them such as `save_to_disk` writes; the split is
        that of the file's name (train-00000-of-00002.parquet) or of a folder.
    image_column: null takes image, img or png; it holds encoded bytes, plain or in a struct.
    label_column: null takes label, labels, class or target; without any, images have no label.
    """

    image_column: str | None = None
    label_column: str | None = None

    def find(self, root: str, inventory: Inventory) -> None:
        for file, inside in files_in(root, inventory, (".parquet", ".arrow")):
            with reading(file):
                if file.endswith(".arrow") and file != root and not _is_saved(file):
                    inventory.leave(inside)  # of a cache
                else:
                    self._file(file, inside, inventory)

    def _file(self, file: str, inside: str, inventory: Inventory) -> None:
        """Add the images of one file; `inside` is its name below the root."""
        number = len(inventory.holders)
        images: list[tuple[int, int, str | None]] = []  # start, size, label
        if file.endswith(".arrow"):
            inventory.holders.append(file)
            with pa.memory_map(file) as mapped:
                _refuse_packed(file, pa.ipc.MessageReader.open_stream(mapped))
                mapped.seek(0)
                base = mapped.read_buffer(mapped.size()).address
                mapped.seek(0)
                reader = pa.ipc.open_stream(mapped)
                columns = self._columns(file, reader.schema)
                names = _name_classes(file, reader.schema, columns[1], inventory)
                end = base + mapped.size()
                for batch in reader:
                    rows = _ROW * (len(images) + len(batch))
                    _refuse_beyond(file, rows, mapped.size(), _GROWS)
                    values, labels = _values(file, batch, *columns, names)
                    starts, sizes, begin = _extents(values)
                    if len(sizes) and not base <= begin + int(starts[0]) <= end:
                        raise DataError(f"{file} is compressed; save it without.")
                    places = starts + (begin - base)
                    images += zip(places.tolist(), sizes.tolist(), labels, strict=True)
        else:
            copy = str(self._copied(file, images, inventory))
            inventory.holders.append(copy)
            inventory.stamps[copy] = read_stamp(copy)
        for row, (start, size, label) in enumerate(images):
            entry = (f"{inside}/{row:09}", start, size, size, -1)
            inventory.images.append(FoundImage(number, *entry, label))

    def _copied(
        self, file: str, images: list[tuple[int, int, str | None]], inventory: Inventory
    ) -> Path:
        """Copy the images of a parquet file into one file; `images` receives where each lies."""
        facts = read_stamp(file)
        key = (file, facts, self.image_column, self.label_column)
        path = home() / "data" / f"{key_of(repr(key))}.images"
        source = remote.RemoteHolder(file, facts).stream() if remote.is_url(file) else file
        table = pq.ParquetFile(source)
        columns = self._columns(file, table.schema_arrow)
        names = _name_classes(file, table.schema_arrow, columns[1], inventory)
        wanted = [name for name in columns if name is not None]

        def write(temporary: Path) -> None:
            at, room = 0, _DISK_SHARE * shutil.disk_usage(temporary.parent).free
            with temporary.open("wb") as out:
                for batch in batches(file, table, facts[0], wanted):
                    values, labels = _values(file, batch, *columns, names)
                    for value, label in zip(values, labels, strict=True):
                        raw = value.as_buffer()
                        if at + raw.size > room:
                            raise OSError(
                                f"the disk has {room / 1e9:,.1f} GB free for them"
                            )
                        out.write(raw)
                        images.append((at, raw.size, label))
                        at += raw.size

        try:
            write_whole(path, write)
        except OSError as error:
            raise DataError(
                f"The images of {file} could not be copied to {path}: {error}. Set KDLAB_HOME "
                "to another disk."
            ) from error
        return path

    def _columns(self, file: str, schema: "pa.Schema") -> tuple[str, str | None]:
        image = column(file, schema.names, self.image_column, _IMAGES)
        label = column(file, schema.names, self.label_column, _LABELS)
        return image or needed(file, schema.names, "images", "image_column"), label


def column(
    file: str, names: Sequence[str], requested: str | None, usual: tuple[str, ...]
) -> str | None:
    """The requested column of a table, or the first that has a usual name.

    Raises:
        DataError: the requested column does not exist.
    """
    if requested is not None and requested not in names:
        raise DataError(f"{file} has no column {requested}; it has {', '.join(names)}.")
    return requested or next((name for name in usual if name in names), None)


def needed(file: str, names: Sequence[str], what: str, field: str) -> NoReturn:
    """Raise DataError for a table without a required column."""
    raise DataError(
        f"{file} has columns {', '.join(names)}; which of them has {what}? Name it: "
        f"data.{field}=NAME"
    )


def batches(
    file: str,
    table: "pq.ParquetFile",
    size: int,
    columns: Sequence[str],
    rows: int = _ROWS,
    grows: int = _GROWS,
) -> "Iterator[pa.RecordBatch]":
    """Rows of a parquet file, some at a time and within bounds: few bytes may unpack to many.

    Raises:
        DataError: columns have more than `grows` times the bytes of the file, its `size`.
    """
    groups = map(table.metadata.row_group, range(table.num_row_groups))
    parts = [group.column(k) for group in groups for k in range(group.num_columns)]
    # The file's own figures, which a malicious file may falsify.
    declared = sum(
        part.total_uncompressed_size
        for part in parts
        if part.path_in_schema.partition(".")[0] in columns
    )
    _refuse_beyond(file, declared, size, grows)
    unpacked, each = 0, declared // max(1, table.metadata.num_rows)
    rows = max(1, min(rows, _AT_ONCE // max(1, each)))
    for batch in table.iter_batches(rows, columns=list(columns)):
        unpacked += batch.nbytes + _ROW * batch.num_rows
        _refuse_beyond(file, unpacked, size, grows)
        yield batch


def _refuse_beyond(file: str, unpacked: int, size: int, grows: int) -> None:
    most = grows * size + _BEYOND
    if unpacked > most:
        raise DataError(
            f"{file} has {size:,} bytes that unpack to {unpacked:,} or more; up to {most:,} are "
            "read. Images are compressed already: this is no data set, or repeats its images. "
            "Write each once, as PNG or JPEG."
        )


def _refuse_packed(file: str, messages: "Iterable[pa.Message]") -> None:
    """Refuse an Arrow file with compressed columns, which reading would unpack in memory."""
    for message in messages:
        # Field numbers of the flatbuffer in Arrow's Message.fbs.
        path = {"record batch": (2, 3), "dictionary": (2, 1, 3)}.get(message.type)
        if path is not None and _has_field(message.metadata.to_pybytes(), path):
            raise DataError(f"{file} is compressed; save it without.")


def _has_field(raw: bytes, path: Sequence[int]) -> bool:
    """Return whether a flatbuffer has the field at a path of field numbers."""
    at = 0
    for number in path:
        at += struct.unpack_from("<I", raw, at)[0]  # of a table
        fields = at - struct.unpack_from("<i", raw, at)[0]
        known = 4 + 2 * number < struct.unpack_from("<H", raw, fields)[0]
        offset = struct.unpack_from("<H", raw, fields + 4 + 2 * number)[0] if known else 0
        if not offset:
            return False
        at += offset
    return True


def _is_saved(file: str) -> bool:
    """Return whether `save_to_disk` wrote an Arrow file, by the state.json beside it."""
    try:
        listed: Any = read_object(Path(file).with_name("state.json"))["_data_files"]
        return Path(file).name in {Path(str(entry["filename"])).name for entry in listed}
    except FileNotFoundError:
        return False
    except (ValueError, KeyError, TypeError, MessageError) as error:
        raise DataError(
            f"{file}: state.json beside it does not list files: {error}"
        ) from error


def _values(
    file: str, batch: "pa.RecordBatch", image: str, label: str | None, names: Sequence[str]
) -> "tuple[pa.Array, Sequence[str | None]]":
    """Encoded images and labels of a batch of rows."""
    values = batch.column(image)
    if pa.types.is_struct(values.type) and values.type.get_field_index("bytes") >= 0:
        values = values.field("bytes")
    if not (pa.types.is_binary(values.type) or pa.types.is_large_binary(values.type)):
        raise DataError(f"{file}: column {image} has {values.type}, not encoded images.")
    if values.null_count:
        raise DataError(
            f"{file}: {values.null_count} images of column {image} are missing. If the column has "
            "paths of files instead, use data/image_list."
        )
    if label is None:
        return values, [None] * len(values)
    labels = batch.column(label).to_pylist()
    if names and all(value is None or isinstance(value, int) for value in labels):
        return values, [
            names[k] if k is not None and 0 <= k < len(names) else None for k in labels
        ]
    try:
        return values, [class_of(value) for value in labels]
    except DataError as error:
        raise DataError(f"{file} {error}") from error


def _class_names(schema: "pa.Schema", label: str) -> list[str]:
    """Names of classes in the schema's metadata, where `datasets` writes them."""
    raw = (schema.metadata or {}).get(b"huggingface")
    if raw is None:
        return []
    try:
        features = from_json(dict[str, Any], raw)["info"]["features"]
        return [str(name) for name in features[label]["names"]]
    except (KeyError, TypeError, MessageError):  # labels of another kind
        return []


def _name_classes(
    file: str, schema: "pa.Schema", label: str | None, inventory: Inventory
) -> tuple[str, ...]:
    """Set and return the names of classes in the order of their numbers."""
    names = tuple(_class_names(schema, label)) if label is not None else ()
    if names and inventory.classes not in (None, names):
        raise DataError(f"{file} numbers its classes differently from the files before it.")
    inventory.classes = names or inventory.classes
    return names


def _extents(values: "pa.Array") -> tuple[NDArray[np.int64], NDArray[np.int64], int]:
    """Start of each value in the common buffer, its bytes, and the buffer's address."""
    kind = np.int64 if pa.types.is_large_binary(values.type) else np.int32
    _, offsets, data = values.buffers()
    every: NDArray[np.int64] = np.frombuffer(offsets, kind).astype(np.int64)
    ends = every[values.offset : values.offset + len(values) + 1]
    return ends[:-1], ends[1:] - ends[:-1], 0 if data is None else int(data.address)
