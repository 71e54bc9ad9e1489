"""Folders, archives and files that hold encoded images, on this machine or at a URL."""

import csv
import os
import stat
import tarfile
import threading
import zipfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from kdlab.data.encoded import remote
from kdlab.errors import DataError

LARGEST = 300_000_000  # bytes of an image file: nothing of the size of memory is unpacked


class LocalHolder:
    """A folder or file of this machine; any thread, and a forked process, may read.

    Methods raise OSError where the file cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor: int | None = None  # of an archive, opened when it is first read
        self._lock = threading.Lock()

    def file(self, name: str, size: int) -> bytes:
        """All bytes of a file in the folder; `size` is what the index has for it."""
        return read_file(self.path / name, LARGEST)

    def part(self, start: int, count: int) -> bytes:
        """`count` bytes of the archive from byte `start` on, fewer at its end."""
        with self._lock:
            if self._descriptor is None:
                self._descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        return os.pread(self._descriptor, count, start)

    def stream(self) -> BinaryIO:
        """The archive as a binary file."""
        return self.path.open("rb")

    def expect(self, parts: Iterable[tuple[str, int, int]]) -> None:
        """Prefetch the parts (name, start, count) that are read next; only of remote holders."""

    def has(self, name: str, start: int, count: int) -> bool:
        """Return whether these bytes are on this machine."""
        return True

    def close(self) -> None:
        with self._lock:
            if self._descriptor is not None:
                os.close(self._descriptor)
            self._descriptor = None


Holder = LocalHolder | remote.RemoteHolder
_UNREADABLE = (OSError, EOFError, ValueError, KeyError, NotImplementedError, csv.Error)
_NO_ARCHIVE = (tarfile.TarError, zipfile.BadZipFile)


@contextmanager
def reading(place: object, missing: str = "") -> Iterator[None]:
    """Turn the errors of each format into a DataError that names `place`.

    `missing` is added to the message where nothing is there.

    Raises:
        DataError: the place does not exist, is damaged, or is of another kind.
    """
    try:
        yield
    except FileNotFoundError as error:
        raise DataError(f"{place} does not exist.{missing}") from error
    except (*_UNREADABLE, *_NO_ARCHIVE) as error:
        raise DataError(f"{place} cannot be read: {error}.") from error


def open_holder(place: str, seen: list[int] | None = None) -> Holder:
    """Holder of a path or URL.

    Args:
        place: the path or URL.
        seen: its stamp at indexing; cached blocks are used only for this stamp.

    Raises:
        DataError: the kind of URL is not supported.
    """
    if remote.is_url(place):
        return remote.RemoteHolder(place, seen)
    return LocalHolder(Path(place))


def read_file(path: Path, most: int) -> bytes:
    """Read a whole file of at most `most` bytes.

    Raises:
        OSError: it cannot be read, is no regular file, or is larger.
    """
    size = read_stamp(path)[0]
    if size > most:
        raise OSError(f"it has {size / 1e6:,.0f} MB; at most {most / 1e6:,.0f} MB are read")
    with path.open("rb") as file:
        return file.read(size + 1)  # one more shows that it grows


def read_stamp(place: str | Path) -> list[int]:
    """Size in bytes and time of modification in ns (at a URL: a number from its metadata).

    A directory has size 0; its time changes with its entries.

    Raises:
        OSError: nothing is there, or it is a pipe or a device, which may never end.
    """
    if remote.is_url(str(place)):
        return remote.read_stamp(str(place))
    path = Path(place)
    status = path.stat()
    if not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)):
        raise OSError("it is a pipe or a device; give a file")
    return [status.st_size if stat.S_ISREG(status.st_mode) else 0, status.st_mtime_ns]
