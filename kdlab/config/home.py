"""Folders kdlab writes to besides a run's own, and files that are whole or absent."""

import errno
import fcntl
import json
import logging
import mmap
import os
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from kdlab.codec import LARGEST, MessageError, from_json

T = TypeVar("T")
never_anew = set[Path]()  # folders that this process fills: once deleted they stay so


def home() -> Path:
    """Decoded data and teachers: `KDLAB_HOME`, or ~/.cache/kdlab; made for this user alone."""
    chosen = os.environ.get("KDLAB_HOME")
    folder = Path(chosen) if chosen else Path.home() / ".cache" / "kdlab"
    with suppress(OSError):  # whoever writes there says that it cannot be
        make_private(folder)
    return folder


def make_private(folder: Path) -> None:
    """Make a folder, and what is missing above it, for this user alone."""
    for missing in reversed([p for p in (folder, *folder.parents) if not p.exists()]):
        if missing in never_anew:
            raise FileNotFoundError(errno.ENOENT, "was deleted meanwhile", str(missing))
        missing.mkdir(mode=0o700, exist_ok=True)


def keep_private() -> None:
    """What this process and its children write is for this user alone, wherever it lies."""
    os.umask(0o077)


def runs_folder() -> Path:
    """Run folders, in the current folder unless `KDLAB_RUNS` moves them."""
    return Path(os.environ.get("KDLAB_RUNS") or "runs").resolve()


def mapped(path: Path, size: int) -> mmap.mmap:
    """A file of so many bytes as memory that outlives this process.

    The disk gives its room now. Where it has none, that is an OSError here; without asking for
    it, it would be a bus error later, which ends the process without a word.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+b") as file:  # several processes may come to it at the same moment
        os.posix_fallocate(file.fileno(), 0, size)
        return mmap.mmap(file.fileno(), size)


def write_whole(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` fill a temporary file, then rename: readers never see half a file."""
    make_private(path.parent)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        write(temporary)
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_json(path: Path, data: Any) -> None:
    text = json.dumps(data, indent=1, default=str)
    write_whole(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def read_plain(path: Path, most: int) -> bytes:
    """All of a file that has up to so many bytes, of whoever wrote it.

    Raises:
        OSError: it cannot be read.
        ValueError: it is too large, or no plain file: a FIFO would keep its reader waiting.
    """
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise ValueError("it is no plain file")
        text = file.read(most + 1)
    if len(text) > most:
        raise ValueError(f"it has more than {most:,} bytes")
    return text


def read_object(path: Path) -> dict[str, object]:
    """An object of JSON, of whoever wrote it.

    Raises:
        OSError, ValueError: as of `read_plain`.
        MessageError: as of `from_json`.
    """
    return from_json(dict[str, object], read_plain(path, LARGEST))


def find_as(kind: type[T], path: Path, cure: str = "") -> T | None:
    """What `plain` made, in a file of JSON, of whoever wrote it; None where there is no file.

    Raises:
        MessageError: it cannot be read, or is no such thing; names it, and says the `cure`.
    """
    try:
        return from_json(kind, read_plain(path, LARGEST))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, MessageError) as error:
        why = getattr(error, "strerror", None) or error
        raise MessageError(f"{path} cannot be read: {why}. {cure}".rstrip()) from error


def read_as(kind: type[T], path: Path, cure: str = "") -> T:
    """As `find_as`; that there is no file is an error, too."""
    found = find_as(kind, path, cure)
    if found is None:
        raise MessageError(f"{path} is missing. {cure}".rstrip())
    return found


def recall_as(kind: type[T], path: Path, then: str) -> T | None:
    """As `find_as` of what can be made anew: None where it is damaged; a warning says what then."""
    try:
        return find_as(kind, path)
    except MessageError as error:
        logging.getLogger("kdlab").warning("%s %s", error, then)
        return None


@contextmanager
def locked(path: Path, while_waiting: Callable[[], None] = lambda: None) -> Iterator[None]:
    """One process at a time; the lock goes with the process, even if it is killed.

    `while_waiting` is called now and then while another one holds it, and may raise.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                while_waiting()
                time.sleep(0.1)  # between tries; the other process ends some time
        try:
            yield
        finally:
            fcntl.flock(file, fcntl.LOCK_UN)
