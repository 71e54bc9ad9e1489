"""Folders that kdlab writes to besides runs, atomic writes and bounded reads."""

import errno
import fcntl
import json
import logging
import mmap
import os
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from kdlab.codec import LARGEST, MessageError, from_json
from kdlab.errors import BadInput

T = TypeVar("T")
never_anew = set[Path]()  # folders that this process does not create again once deleted


def home_path() -> Path:
    """Return the path of the cache folder, `KDLAB_HOME` or ~/.cache/kdlab."""
    configured = os.environ.get("KDLAB_HOME")
    return Path(configured) if configured else Path.home() / ".cache" / "kdlab"


def home() -> Path:
    """Return the cache folder, created private to this user; BadInput where it cannot be."""
    folder, why = home_path(), os.strerror(errno.ENOTDIR)
    try:
        make_private(folder)
    except OSError as error:
        why = str(error.strerror)
    if not os.path.isdir(folder):
        raise BadInput(
            f"The cache folder {folder} cannot be created: {why}. Set KDLAB_HOME to a folder "
            "that can be written."
        )
    return folder


def make_private(folder: Path) -> None:
    """Create a folder and its missing parents, private to this user."""
    for missing in reversed([p for p in (folder, *folder.parents) if not p.exists()]):
        if missing in never_anew:
            raise FileNotFoundError(errno.ENOENT, "was deleted meanwhile", str(missing))
        missing.mkdir(mode=0o700, exist_ok=True)


def keep_private() -> None:
    """Set the umask: only this user can read what this process and its children write."""
    os.umask(0o077)


def runs_folder() -> Path:
    """Return the folder of runs: `KDLAB_RUNS`, or `runs` in the current folder."""
    return Path(os.environ.get("KDLAB_RUNS") or "runs").resolve()


def mapped(path: Path, size: int) -> mmap.mmap:
    """Map a file of `size` bytes as shared memory that outlives this process.

    The disk space is reserved now: a full disk is an OSError here, and would otherwise be a bus
    error later, which ends the process without a message.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+b") as file:  # several processes may open it at once
        os.posix_fallocate(file.fileno(), 0, size)
        return mmap.mmap(file.fileno(), size)


def write_whole(path: Path, write: Callable[[Path], object]) -> None:
    """Write a file atomically: `write` fills a temporary file, which is then renamed."""
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
    """Read an untrusted file of at most `most` bytes.

    Raises:
        OSError: it cannot be read.
        ValueError: it is larger, or not a regular file (a FIFO would block the reader).
    """
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise ValueError("it is no plain file")
        text = file.read(most + 1)
    if len(text) > most:
        raise ValueError(f"it has more than {most:,} bytes")
    return text


def read_object(path: Path) -> dict[str, object]:
    """Read a JSON object from an untrusted file.

    Raises:
        OSError, ValueError: from `read_plain`.
        MessageError: from `from_json`.
    """
    return from_json(dict[str, object], read_plain(path, LARGEST))


def find_as(kind: type[T], path: Path, cure: str = "") -> T | None:
    """Read an untrusted JSON file as `kind`; None where the file is missing.

    Raises:
        MessageError: unreadable, or not of this kind; names the file and ends with `cure`.
    """
    try:
        return from_json(kind, read_plain(path, LARGEST))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, MessageError) as error:
        why = getattr(error, "strerror", None) or error
        raise MessageError(f"{path} cannot be read: {why}. {cure}".rstrip()) from error


def read_as(kind: type[T], path: Path, cure: str = "") -> T:
    """Read an untrusted JSON file as `kind`; MessageError, also where the file is missing."""
    content = find_as(kind, path, cure)
    if content is None:
        raise MessageError(f"{path} is missing. {cure}".rstrip())
    return content


def recall_as(kind: type[T], path: Path, then: str) -> T | None:
    """Read a replaceable JSON file; None where it is missing or damaged, with a warning."""
    try:
        return find_as(kind, path)
    except MessageError as error:
        logging.getLogger("kdlab").warning("%s %s", error, then)
        return None


@contextmanager
def locked(path: Path, while_waiting: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Hold a lock file; the lock ends with the process, even if it is killed.

    `while_waiting` is called every 0.1 s while another process holds it, and may raise.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                while_waiting()
                time.sleep(0.1)  # between tries
        try:
            yield
        finally:
            fcntl.flock(file, fcntl.LOCK_UN)
