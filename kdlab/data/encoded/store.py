"""The bytes of each image of an indexed set, from folders and archives, never unpacked."""

import os
import threading
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path

from kdlab.config.home import home, locked
from kdlab.config.seal import META
from kdlab.data.encoded.index import FoundImage, Index, open_index, write_index
from kdlab.data.encoded.walk import walk
from kdlab.errors import DataError

_LARGEST = 300_000_000  # bytes of an image file: nothing of the size of memory is unpacked
_RAW_DEFLATE = -15  # window bits: members of a zip have no header of zlib's


class Store:
    """Images by their rows in an index; any thread, and a forked process, may read."""

    def __init__(self, index: Index, folder: Path) -> None:
        self.index = index
        self._folder = folder  # of the index
        self._holders = index.holders
        self._open: dict[int, int] = {}  # descriptors of archives, by number
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self.index)

    def shown(self, row: int) -> str:
        """Where it lies, for people."""
        holder, name = self._holders[self.index.holder[row]], self.index.name(row)
        return f"{holder}{'/' if self.index.start[row] < 0 else ': '}{name}"

    def read(self, row: int) -> bytes:
        """The encoded bytes of one image.

        Raises:
            DataError: it is gone, is not what it was when it was indexed, or is too large.
        """
        index = self.index
        size, start = int(index.size[row]), int(index.start[row])
        if max(size, int(index.packed[row])) > _LARGEST:
            raise DataError(
                f"{self.shown(row)} has {size / 1e6:,.0f} MB, which no image has."
            )
        try:
            raw = self._file(row) if start < 0 else self._member(row, start)
        except (OSError, zlib.error) as error:
            raise DataError(f"{self.shown(row)} cannot be read: {error}.") from error
        crc = int(index.crc[row])
        if len(raw) != size or (crc >= 0 and zlib.crc32(raw) != crc):
            what = (
                f"has {len(raw):,} bytes, it had {size:,}"
                if len(raw) != size
                else "differs from its checksum"
            )
            (self._folder / META).unlink(missing_ok=True)
            raise DataError(
                f"{self.shown(row)} {what}: it is damaged, or was changed since the set was "
                "indexed. At the next start it is indexed anew."
            )
        return raw

    def _file(self, row: int) -> bytes:
        path = self._holders[self.index.holder[row]] / self.index.name(row)
        with path.open("rb") as file:
            return file.read(_LARGEST)

    def _member(self, row: int, start: int) -> bytes:
        packed, size = int(self.index.packed[row]), int(self.index.size[row])
        raw = os.pread(self._descriptor(int(self.index.holder[row])), packed, start)
        if packed == size:
            return raw
        return zlib.decompressobj(_RAW_DEFLATE).decompress(raw, size + 1)

    def _descriptor(self, number: int) -> int:
        with self._lock:
            if number not in self._open:
                self._open[number] = os.open(
                    self._holders[number], os.O_RDONLY | os.O_CLOEXEC
                )
            return self._open[number]

    def close(self) -> None:
        with self._lock:
            for descriptor in self._open.values():
                os.close(descriptor)
            self._open.clear()

    def __del__(self) -> None:
        self.close()


def indexed(
    roots: Sequence[Path],
    key: str,
    say: Callable[[str], None] = lambda line: None,
    *,
    verify: bool = False,
) -> Store:
    """The store of these folders and archives together, indexed now if they were not before.

    Args:
        roots: [train|val|test]/CLASS/image each.
        key: names the index below `<home>/data/`.
        say: gets a line when it takes long.
        verify: check the hashes of the index: once a run.

    Raises:
        DataError: a root is missing, holds no image or cannot be read.
    """
    folder = home() / "data" / f"{key}.index"
    if (index := open_index(folder, roots, verify=verify)) is not None:
        return Store(index, folder)
    with locked(folder.with_suffix(".lock")):
        if (index := open_index(folder, roots, verify=verify)) is None:
            index = _made(folder, roots, say)
    return Store(index, folder)


def _made(folder: Path, roots: Sequence[Path], say: Callable[[str], None]) -> Index:
    found, looks = list[FoundImage](), dict[str, dict[str, list[int]]]()
    for number, root in enumerate(roots):
        inside, looks[str(root)] = walk(root, number)
        found += inside
        if len(found) > 100_000:
            say(f"indexed {len(found):,} images, once")
    write_index(folder, found, looks)
    index = open_index(folder, roots, verify=False)
    if index is None:
        raise DataError(
            f"{', '.join(map(str, roots))} changed while it was indexed. Start again when "
            "nobody writes to it."
        )
    return index
