"""Folders that can be believed: a seal holds the size and the hash of each file in them.

What kdlab keeps and reads again later (decoded images, soft labels, checkpoints) is sealed
when it is complete: `meta.json`, written last, has facts and a line for each file, and a hash
of itself. Sizes are checked whenever a folder is opened, hashes once a run.
"""

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from kdlab.codec import Count, MessageError, from_builtins
from kdlab.config.home import read_as, read_object, write_json
from kdlab.errors import KdlabError

META = "meta.json"
_CHECKED = "checked.json"  # when all hashes held last, and what the files looked like then
_HOLDS_S = 600.0  # so long a check of hashes counts for other processes of a run too


class DamagedFolder(KdlabError):
    """A sealed folder whose files are not what the seal says."""


class _File(NamedTuple):
    size: Count  # bytes
    sha256: str


def file_sha256(path: Path) -> str:
    """Hash of a file, read in pieces of a megabyte."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def seal(folder: Path, names: Iterable[str], facts: Mapping[str, object]) -> None:
    """Make what lies in a folder complete; the files are on disk before its `meta.json` is."""
    files = {}
    for name in sorted(names):
        path = folder / name
        with path.open("rb") as file:
            os.fsync(file.fileno())
        files[name] = _File(path.stat().st_size, file_sha256(path))
    body = json.loads(json.dumps({"facts": dict(facts), "files": files}, default=str))
    write_json(folder / META, body | {"seal": hash_of(body)})


def sealed(folder: Path) -> bool:
    """Whether it was ever complete; whether it still is, says `check`."""
    return (folder / META).is_file()


def check(folder: Path, *, hashes: bool) -> dict[str, object]:
    """The facts of a folder whose files have their sizes, and with `hashes` their hashes too.

    Raises:
        Damaged: says which file is how.
    """
    facts, files = _read(folder)
    for name, known in files.items():
        try:
            size = (folder / name).stat().st_size
        except OSError:
            raise DamagedFolder(f"{name} is missing, it had {known.size:,}") from None
        if size != known.size:
            raise DamagedFolder(f"{name} has {size:,} bytes, it had {known.size:,}")
    if hashes and not _checked_lately(folder, files):
        for name, known in files.items():
            try:
                same = file_sha256(folder / name) == known.sha256
            except OSError as error:
                raise DamagedFolder(f"{name} cannot be read: {error}") from error
            if not same:
                raise DamagedFolder(f"{name} differs from its hash")
        _note_checked(folder, files)
    return facts


def damage(folder: Path, *, hashes: bool) -> str | None:
    """What `check` would raise, as words; None where the files are what they were."""
    try:
        check(folder, hashes=hashes)
    except DamagedFolder as error:
        return str(error)
    return None


def _read(folder: Path) -> tuple[dict[str, object], dict[str, _File]]:
    try:
        body = read_object(folder / META)
        seal = body.pop("seal", None)
        if seal is None:
            raise DamagedFolder(f"{META} has no seal: another version of kdlab wrote it")
        if seal != hash_of(body):
            raise DamagedFolder(f"{META} differs from its hash")
        facts, files = body.get("facts"), body.get("files")
        return from_builtins(dict[str, object], facts), from_builtins(
            dict[str, _File], files
        )
    except (OSError, ValueError, MessageError) as error:
        raise DamagedFolder(f"{META} cannot be read: {error}") from error


def hash_of(body: object) -> str:
    """sha256 of what JSON can hold."""
    text = json.dumps(body, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _looks(folder: Path, files: Iterable[str]) -> list[list[int]]:
    """What changes when a file is written to or replaced."""
    stats = [(folder / name).stat() for name in files]
    return [[s.st_ino, s.st_size, s.st_mtime_ns, s.st_ctime_ns] for s in stats]


def _note_checked(folder: Path, files: Iterable[str]) -> None:
    # A folder that cannot be written to is checked by each process. Not by `write_json`, which
    # would make a folder anew that was removed meanwhile.
    with contextlib.suppress(OSError):
        noted = time.time(), _looks(folder, files)
        (folder / _CHECKED).write_text(json.dumps(noted), encoding="utf-8")


def _checked_lately(folder: Path, files: Iterable[str]) -> bool:
    try:
        then, looks = read_as(tuple[float, list[list[int]]], folder / _CHECKED)
        return 0 <= time.time() - then < _HOLDS_S and looks == _looks(folder, files)
    except (OSError, MessageError):
        return False
