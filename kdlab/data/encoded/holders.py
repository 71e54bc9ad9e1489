"""What holds encoded images: a folder, an archive or another file, here or at a URL."""

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

    What is read raises OSError where it cannot be.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor: int | None = None  # of an archive, opened when it is first read
        self._lock = threading.Lock()

    def file(self, name: str, size: int) -> bytes:
        """A file of a folder, which had so many bytes."""
        return read_file(self.path / name, LARGEST)

    def part(self, start: int, count: int) -> bytes:
        """Bytes of an archive, fewer at its end."""
        with self._lock:
            if self._descriptor is None:
                self._descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        return os.pread(self._descriptor, count, start)

    def stream(self) -> BinaryIO:
        """The archive, to be walked through."""
        return self.path.open("rb")

    def expect(self, parts: Iterable[tuple[str, int, int]]) -> None:
        """These (name, start, count) are read next; what is far away is fetched together."""

    def has(self, name: str, start: int, count: int) -> bool:
        """Whether these bytes lie on this machine."""
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
    """What each format raises in its own way, said of a place; `missing` is added of none.

    Raises:
        DataError: it is not there, damaged, or of another kind.
    """
    try:
        yield
    except FileNotFoundError as error:
        raise DataError(f"{place} does not exist.{missing}") from error
    except (*_UNREADABLE, *_NO_ARCHIVE) as error:
        raise DataError(f"{place} cannot be read: {error}.") from error


def opened(place: str, seen: list[int] | None = None) -> Holder:
    """What lies at a path or URL.

    Args:
        place: of it.
        seen: what it looked like: blocks of it that are kept count for that alone.

    Raises:
        DataError: a URL of a kind that is not taken.
    """
    if remote.is_url(place):
        return remote.RemoteHolder(place, seen)
    return LocalHolder(Path(place))


def read_file(path: Path, most: int) -> bytes:
    """All of a file.

    Raises:
        OSError: it cannot be read, is none, or has more bytes than these.
    """
    size = look(path)[0]
    if size > most:
        raise OSError(
            f"{size / 1e6:,.0f} MB are more than the {most / 1e6:,.0f} that are read"
        )
    with path.open("rb") as file:
        return file.read(size + 1)  # one more shows that it grows


def look(place: str | Path) -> list[int]:
    """What changes with a file, with the entries of a directory, or with what lies at a URL.

    Raises:
        OSError: it is not there, or is a pipe or a device, which may never come to an end.
    """
    if remote.is_url(str(place)):
        return remote.look(str(place))
    path = Path(place)
    status = path.stat()
    if not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)):
        raise OSError("it is a pipe or a device; give a file")
    return [status.st_size if stat.S_ISREG(status.st_mode) else 0, status.st_mtime_ns]
