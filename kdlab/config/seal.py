"""Sealed folders: `meta.json` holds the size and the hash of each file.

kdlab seals what it reads again later (decoded images, soft labels, checkpoints) when it is
complete: `meta.json`, written last, has facts, a line for each file and a hash of itself.
Sizes are checked whenever a folder is opened, hashes once a run.
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
_CHECKED = "checked.json"  # when all hashes last matched, and the files' stats then
_HOLDS_S = 600.0  # a check of hashes counts this long, also for other processes of a run


class DamagedFolder(KdlabError):
    """A sealed folder whose files differ from the seal."""


class _File(NamedTuple):
    size: Count  # bytes
    sha256: str


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a file in hex; reads in pieces."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def seal(folder: Path, names: Iterable[str], facts: Mapping[str, object]) -> None:
    """Seal a complete folder: sync its files to disk, then write `meta.json`."""
    files = {}
    for name in sorted(names):
        path = folder / name
        with path.open("rb") as file:
            os.fsync(file.fileno())
        files[name] = _File(path.stat().st_size, file_sha256(path))
    body = json.loads(json.dumps({"facts": dict(facts), "files": files}, default=str))
    write_json(folder / META, body | {"seal": hash_of(body)})


def sealed(folder: Path) -> bool:
    """True where a folder was once complete; `check` finds later damage."""
    return (folder / META).is_file()


def check(folder: Path, *, hashes: bool) -> dict[str, object]:
    """Check sizes, and with `hashes` hashes, of a sealed folder's files; return its facts.

    Raises:
        DamagedFolder: names the file and its difference.
    """
    facts, files = _read(folder)
    for name, sealed_file in files.items():
        try:
            size = (folder / name).stat().st_size
        except OSError:
            raise DamagedFolder(f"{name} is missing, it had {sealed_file.size:,}") from None
        if size != sealed_file.size:
            raise DamagedFolder(f"{name} has {size:,} bytes, it had {sealed_file.size:,}")
    if hashes and not _checked_lately(folder, files):
        for name, sealed_file in files.items():
            try:
                same = file_sha256(folder / name) == sealed_file.sha256
            except OSError as error:
                raise DamagedFolder(f"{name} cannot be read: {error}") from error
            if not same:
                raise DamagedFolder(f"{name} differs from its hash")
        _note_checked(folder, files)
    return facts


def damage(folder: Path, *, hashes: bool) -> str | None:
    """Return the message of the error that `check` raises; None where all files match."""
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
    """Return the SHA-256 of a JSON value in hex."""
    text = json.dumps(body, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _stats(folder: Path, files: Iterable[str]) -> list[list[int]]:
    """Return inode, size and times of each file, which change when it is written or replaced."""
    stats = [(folder / name).stat() for name in files]
    return [[s.st_ino, s.st_size, s.st_mtime_ns, s.st_ctime_ns] for s in stats]


def _note_checked(folder: Path, files: Iterable[str]) -> None:
    # Without write access, each process checks for itself. `write_json` would create a folder
    # that was removed meanwhile.
    with contextlib.suppress(OSError):
        noted = time.time(), _stats(folder, files)
        (folder / _CHECKED).write_text(json.dumps(noted), encoding="utf-8")


def _checked_lately(folder: Path, files: Iterable[str]) -> bool:
    try:
        checked_at, stats = read_as(tuple[float, list[list[int]]], folder / _CHECKED)
        return 0 <= time.time() - checked_at < _HOLDS_S and stats == _stats(folder, files)
    except (OSError, MessageError):
        return False
