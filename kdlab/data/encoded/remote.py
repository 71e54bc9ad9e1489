"""Images at a URL: read in blocks, which a bounded folder of this machine keeps.

fsspec speaks to the other side (HTTP, S3, Google, Azure, each with its own credentials). A block
carries its SHA-256 and is fetched again when it is damaged; the blocks that were used longest ago
go when there are too many.
"""

import asyncio
import hashlib
import io
import os
import re
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, cast

from kdlab.config.home import home, write_whole
from kdlab.errors import DataError, KdlabError

if TYPE_CHECKING:
    from aiohttp import TraceRequestRedirectParams
    from fsspec import AbstractFileSystem

KINDS = ("http", "https", "s3", "gs", "gcs", "az", "abfs", "memory")
BLOCK = 1 << 20  # bytes
_URL = re.compile(r"^([a-z][a-z0-9+.-]*)://", re.IGNORECASE)
_DIGEST = 32  # bytes before those of a block
_CACHE_GB = 20.0  # of all blocks, unless KDLAB_CACHE_GB says otherwise
_DISK_SHARE = 0.5  # at most
_KEPT_SHARE = 0.9  # of the most: what is left after old blocks went
_USED_AGAIN_S = 60.0  # between notes that a block is in use
_WAITS_S = (0.5, 2.0, 8.0)  # before another try
_AT_ONCE = 16  # requests
_ANSWER = 8 * BLOCK  # bytes: a block, or a page of links
_WHOLE = "{} came: it has changed, or the server sends whole files only (no HTTP ranges)"


def is_url(place: str) -> bool:
    return _URL.match(place) is not None


def filesystem(url: str) -> "AbstractFileSystem":
    """What fsspec has for this kind of URL.

    Raises:
        DataError: a kind that is not taken, or whose package is missing.
    """
    import fsspec

    found = _URL.match(url)
    kind = found.group(1).lower() if found else ""
    if kind not in KINDS:
        raise DataError(f"{url} is of a kind that is not read: {', '.join(KINDS)} are.")
    try:
        how = _http() if kind.startswith("http") else {}
        return cast("AbstractFileSystem", fsspec.filesystem(kind, **how))
    except ImportError as error:
        raise DataError(f"{url} needs another package: {error}") from error


@cache
def _http() -> Mapping[str, object]:
    """What aiohttp is told: an answer comes from the host that was asked, unpacked and bounded."""
    import aiohttp

    class Answer(aiohttp.ClientResponse):
        async def read(self) -> bytes:
            if self._body is None:
                try:
                    await self.content.readexactly(_ANSWER)
                except asyncio.IncompleteReadError as whole:
                    self._body = whole.partial
                else:
                    self.close()
                    raise OSError(_WHOLE.format(f"{_ANSWER:,} bytes and more"))
            return self._body

    watched = aiohttp.TraceConfig()
    watched.on_request_redirect.append(_refuse_elsewhere)
    session = {
        "response_class": Answer,
        "trace_configs": [watched],
        "headers": {"Accept-Encoding": "identity"},
        "auto_decompress": False,
    }
    return {"client_kwargs": session}


async def _refuse_elsewhere(
    session: object, context: object, asked: "TraceRequestRedirectParams"
) -> None:
    """Redirects stay on the host, or go to its encrypted side."""
    here, answer = asked.url, asked.response
    # aiohttp goes by the old header, too.
    told = answer.headers.get("Location") or answer.headers.get("URI") or ""
    there = here.join(type(here)(told))
    safer = (here.scheme, there.scheme) == ("http", "https")
    if here.host != there.host or (here.port != there.port and not safer):
        answer.close()
        raise DataError(
            f"{here.host}:{here.port} sends who asks for {here.with_query(None)} on to another "
            f"host, {there.host}:{there.port}. Nothing was asked for there: it may be a host that "
            "only this machine reaches. If you trust it, load the file down, or give its address:\n"
            f"    {there.with_query(None)}"
        )


def look(url: str) -> list[int]:
    """Size, and a number that changes with what lies there; of a folder with its files.

    Raises:
        OSError: it is not there.
    """
    with _said_as_oserror(url):
        facts = filesystem(url).info(url)
    if facts.get("type") == "directory":
        every = sorted(listing(url).items())
        said = [f"{name} {file.get('size')} {_stamps(file)}" for name, file in every]
    else:
        said = _stamps(facts)
    digest = hashlib.sha256("\n".join(said).encode()).digest()
    return [int(facts.get("size") or 0), int.from_bytes(digest[:7], "big")]


def _stamps(facts: Mapping[str, object]) -> list[str]:
    """What a server says that changes with a file; each kind of storage has its own words."""
    return [
        str(facts.get(key, ""))
        for key in (
            *("ETag", "etag", "LastModified", "last_modified", "Last-Modified", "mtime"),
            *("md5Hash", "Content-MD5", "created", "updated"),
        )
    ]


def listing(url: str) -> Mapping[str, Mapping[str, object]]:
    """All files below a folder, with what is known of each.

    Raises:
        OSError: it cannot be listed.
    """
    refuse_web_folder(url)
    with _said_as_oserror(url):
        found: Mapping[str, Mapping[str, object]] = filesystem(url).find(url, detail=True)
    return found


def refuse_web_folder(url: str) -> None:
    """OSError for HTTP: what a page links to is no list of files."""
    if url.lower().startswith("http"):
        raise OSError(
            "a web server lists no folders: give a zip, tar files or another store"
        )


def matches(pattern: str) -> list[str]:
    """URLs that a pattern with * finds.

    Raises:
        OSError: nothing could be asked.
    """
    kind = pattern.partition("://")[0]
    with _said_as_oserror(pattern):
        found = [str(one) for one in filesystem(pattern).glob(pattern)]
    return [one if is_url(one) else f"{kind}://{one}" for one in found]


@contextmanager
def _said_as_oserror(url: str) -> Iterator[None]:
    """What each kind of remote storage raises in its own way."""
    try:
        yield
    except (OSError, KdlabError) as error:
        if isinstance(error.__cause__, KdlabError):  # which fsspec calls a missing file
            raise error.__cause__ from None
        raise
    except Exception as error:
        raise OSError(f"{type(error).__name__}: {error}") from error


def read_whole(url: str, most: int) -> bytes:
    """A small file, such as a table.

    Raises:
        OSError: it cannot be had, or has more bytes than these.
    """
    holder = RemoteHolder(url, look(url))
    if holder.size > most:
        raise OSError(f"{holder.size:,} bytes are more than the {most:,} that are read")
    return holder.part(0, holder.size)


class RemoteHolder:
    """A folder or file at a URL.

    Args:
        url: of it.
        seen: its `look`; blocks that are kept count for that alone.
    """

    def __init__(self, url: str, seen: Sequence[int] | None = None) -> None:
        self.url, self.version = url, str(seen)
        self.size = seen[0] if seen else 0  # bytes, of a file

    def file(self, name: str, size: int) -> bytes:
        return _read(*self._job(name, 0, size))

    def part(self, start: int, count: int) -> bytes:
        return _read(*self._job("", start, count))

    def stream(self) -> BinaryIO:
        return stream_of(self.part, self.size)

    def expect(self, parts: Iterable[tuple[str, int, int]]) -> None:
        missing = {block for part in parts for block in _missing(*self._job(*part))}
        list(_fetchers(os.getpid()).map(lambda block: _fetch(*block), sorted(missing)))

    def has(self, name: str, start: int, count: int) -> bool:
        return not _missing(*self._job(name, start, count))

    def _job(self, name: str, start: int, count: int) -> tuple[str, str, int, int, int]:
        """What `_read` takes for a part."""
        if name:
            return f"{self.url.rstrip('/')}/{name}", self.version, count, 0, count
        return self.url, self.version, self.size, start, count

    def close(self) -> None:
        """Nothing is held open."""


def stream_of(
    part: Callable[[int, int], bytes], size: int, buffer: int = BLOCK
) -> BinaryIO:
    """So many bytes as zipfile and tarfile read a file; `part` gives some from a place on."""
    return io.BufferedReader(_Stream(part, size), buffer)


class _Stream(io.RawIOBase):
    def __init__(self, part: Callable[[int, int], bytes], size: int) -> None:
        self._part, self._size, self._at = part, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = (0, self._at, self._size)[whence]
        self._at = max(0, base + offset)
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        raw = self._part(self._at, max(0, min(len(buffer), self._size - self._at)))
        buffer[: len(raw)] = raw
        self._at += len(raw)
        return len(raw)


UrlBlock = tuple[str, str, int, int]  # URL, version, bytes of the whole, number


@cache
def _fetchers(pid: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="fetch")


def _read(url: str, version: str, size: int, start: int, count: int) -> bytes:
    """Bytes of a remote file, by way of the blocks that are kept."""
    stop = min(start + count, size)
    if start >= stop:
        return b""
    first = start // BLOCK
    raw = b"".join(
        _kept((url, version, size, number)) or _fetch(url, version, size, number)
        for number in range(first, (stop - 1) // BLOCK + 1)
    )
    return raw[start - first * BLOCK : stop - first * BLOCK]


def _missing(url: str, version: str, size: int, start: int, count: int) -> list[UrlBlock]:
    stop = min(start + count, size)
    numbers = range(start // BLOCK, (max(start, stop - 1)) // BLOCK + 1) if stop else ()
    wanted = [(url, version, size, number) for number in numbers]
    return [block for block in wanted if not _place(block).exists()]


def _fetch(url: str, version: str, size: int, number: int) -> bytes:
    """One block, from there; kept when the disk has room for it.

    Raises:
        OSError: it could not be had, several times.
    """
    start, stop = number * BLOCK, min((number + 1) * BLOCK, size)
    for wait in (*_WAITS_S, None):
        try:
            raw: bytes = filesystem(url).cat_file(url, start, stop)
        except (FileNotFoundError, KdlabError):
            raise
        except Exception as error:  # each kind of remote storage has its own
            if wait is None:
                raise OSError(f"{type(error).__name__}: {error}") from error
            time.sleep(wait)  # it may be back by then
            continue
        if len(raw) != stop - start:
            raise OSError(_WHOLE.format(f"{len(raw):,} bytes for {stop - start:,}"))
        break
    path = _place((url, version, size, number))
    whole = hashlib.sha256(raw).digest() + raw
    with suppress(OSError):  # a full disk: then it is not kept
        write_whole(path, lambda temporary: temporary.write_bytes(whole))
        _limit(os.getpid()).added(len(whole))
    return raw


def _kept(block: UrlBlock) -> bytes | None:
    path = _place(block)
    try:
        whole = path.read_bytes()
        if time.time() - path.stat().st_mtime > _USED_AGAIN_S:
            os.utime(path)
    except OSError:
        return None
    raw = whole[_DIGEST:]
    if hashlib.sha256(raw).digest() != whole[:_DIGEST]:
        path.unlink(missing_ok=True)
        return None
    return raw


def _place(block: UrlBlock) -> Path:
    key = hashlib.sha256(repr(block).encode()).hexdigest()
    return blocks_folder() / key[:2] / key


def blocks_folder() -> Path:
    return home() / "data" / "blocks"


@cache
def _limit(pid: int) -> "_Limit":
    return _Limit()


class _Limit:
    """Bounds the blocks of all processes, looked at whenever one has added a twentieth."""

    def __init__(self) -> None:
        self._new: float = float("inf")  # bytes since the last look: the first looks

    def added(self, count: int) -> None:
        self._new += count
        most = most_bytes()
        if self._new > most / 20:
            self._new = 0
            make_room(most)


def most_bytes() -> float:
    """What all blocks may have together: never more than half of the disk."""
    said = os.environ.get("KDLAB_CACHE_GB", str(_CACHE_GB))
    try:
        asked = float(said)
    except ValueError as error:
        raise DataError(
            f"KDLAB_CACHE_GB is {said!r}; it is a number, such as 20."
        ) from error
    return min(1e9 * asked, _DISK_SHARE * shutil.disk_usage(blocks_folder()).total)


def make_room(most: float) -> None:
    """Remove the blocks that were used longest ago, where all have more than so many bytes."""
    found = []
    for path in blocks_folder().glob("*/*"):
        with suppress(OSError):  # another process was first
            status = path.stat()
            found.append((status.st_mtime, status.st_size, path))
    total = sum(size for _, size, _ in found)
    if total <= most:
        return
    for _, size, path in sorted(found):
        path.unlink(missing_ok=True)
        total -= size
        if total <= _KEPT_SHARE * most:
            return
