"""Images at a URL, read in blocks that a folder of bounded size on this machine caches.

fsspec is the client (HTTP, S3, Google, Azure, each with its own credentials). A block carries its
SHA-256 and is fetched again when it is damaged; the least recently used blocks are removed when
the cache is full.
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
_KEPT_SHARE = 0.9  # of the most: what stays after old blocks are removed
_USED_AGAIN_S = 60.0  # between notes that a block is in use
_WAITS_S = (0.5, 2.0, 8.0)  # before another try
_AT_ONCE = 16  # requests
_ANSWER = 8 * BLOCK  # bytes: a block, or a page of links
_WHOLE = "received {}: the file has changed, or the server sends whole files only (no HTTP ranges)"


def is_url(place: str) -> bool:
    return _URL.match(place) is not None


def filesystem(url: str) -> "AbstractFileSystem":
    """The fsspec file system for this kind of URL.

    Raises:
        DataError: the kind is not supported, or its package is missing.
    """
    import fsspec

    match = _URL.match(url)
    kind = match.group(1).lower() if match else ""
    if kind not in KINDS:
        raise DataError(
            f"{url}: this kind of URL is not supported. Use {', '.join(KINDS)}."
        )
    try:
        options = _http() if kind.startswith("http") else {}
        return cast("AbstractFileSystem", fsspec.filesystem(kind, **options))
    except ImportError as error:
        raise DataError(f"{url} needs another package: {error}") from error


@cache
def _http() -> Mapping[str, object]:
    """Options of aiohttp: responses from the requested host, uncompressed and bounded."""
    import aiohttp

    class Answer(aiohttp.ClientResponse):
        async def read(self) -> bytes:
            if self._body is None:
                try:
                    await self.content.readexactly(_ANSWER)
                except asyncio.IncompleteReadError as error:
                    self._body = error.partial
                else:
                    self.close()
                    raise OSError(_WHOLE.format(f"{_ANSWER:,} bytes and more"))
            return self._body

    trace = aiohttp.TraceConfig()
    trace.on_request_redirect.append(_refuse_elsewhere)
    session = {
        "response_class": Answer,
        "trace_configs": [trace],
        "headers": {"Accept-Encoding": "identity"},
        "auto_decompress": False,
    }
    return {"client_kwargs": session}


async def _refuse_elsewhere(
    session: object, context: object, redirect: "TraceRequestRedirectParams"
) -> None:
    """Refuse redirects to another host or port; http to https of the same host is allowed."""
    source, response = redirect.url, redirect.response
    # aiohttp follows the old header, too.
    location = response.headers.get("Location") or response.headers.get("URI") or ""
    target = source.join(type(source)(location))
    safer = (source.scheme, target.scheme) == ("http", "https")
    if source.host != target.host or (source.port != target.port and not safer):
        response.close()
        raise DataError(
            f"{source.host}:{source.port} redirects {source.with_query(None)} to another host, "
            f"{target.host}:{target.port}. The redirect was not followed: it may be a host that "
            "only this machine reaches. If you trust it, download the file or give its address:\n"
            f"    {target.with_query(None)}"
        )


def read_stamp(url: str) -> list[int]:
    """Size in bytes, and a hash of the metadata: of a file, or of all files of a folder.

    Raises:
        OSError: nothing is there.
    """
    with _as_oserror(url):
        facts = filesystem(url).info(url)
    if facts.get("type") == "directory":
        files = sorted(listing(url).items())
        lines = [f"{name} {file.get('size')} {_stamps(file)}" for name, file in files]
    else:
        lines = _stamps(facts)
    digest = hashlib.sha256("\n".join(lines).encode()).digest()
    return [int(facts.get("size") or 0), int.from_bytes(digest[:7], "big")]


def _stamps(facts: Mapping[str, object]) -> list[str]:
    """Metadata that changes with a file; each kind of storage names it differently."""
    return [
        str(facts.get(key, ""))
        for key in (
            *("ETag", "etag", "LastModified", "last_modified", "Last-Modified", "mtime"),
            *("md5Hash", "Content-MD5", "created", "updated"),
        )
    ]


def listing(url: str) -> Mapping[str, Mapping[str, object]]:
    """All files below a folder, with their metadata.

    Raises:
        OSError: it cannot be listed.
    """
    refuse_web_folder(url)
    with _as_oserror(url):
        files: Mapping[str, Mapping[str, object]] = filesystem(url).find(url, detail=True)
    return files


def refuse_web_folder(url: str) -> None:
    """Raise OSError for HTTP, which has no list of files."""
    if url.lower().startswith("http"):
        raise OSError(
            "a web server does not list folders: give a zip, tar files or another store"
        )


def matches(pattern: str) -> list[str]:
    """URLs that match a pattern with *.

    Raises:
        OSError: the server could not be reached.
    """
    kind = pattern.partition("://")[0]
    with _as_oserror(pattern):
        urls = [str(url) for url in filesystem(pattern).glob(pattern)]
    return [url if is_url(url) else f"{kind}://{url}" for url in urls]


@contextmanager
def _as_oserror(url: str) -> Iterator[None]:
    """Turn the exceptions of each kind of remote storage into OSError."""
    try:
        yield
    except (OSError, KdlabError) as error:
        if isinstance(error.__cause__, KdlabError):  # fsspec reports it as a missing file
            raise error.__cause__ from None
        raise
    except Exception as error:
        raise OSError(f"{type(error).__name__}: {error}") from error


def read_whole(url: str, most: int) -> bytes:
    """Read a small file, such as a table, of at most `most` bytes.

    Raises:
        OSError: it cannot be read, or is larger.
    """
    holder = RemoteHolder(url, read_stamp(url))
    if holder.size > most:
        raise OSError(f"it has {holder.size:,} bytes; at most {most:,} are read")
    return holder.part(0, holder.size)


class RemoteHolder:
    """A folder or file at a URL.

    Args:
        url: where it lies.
        seen: its `read_stamp`; cached blocks are used only for this stamp.
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
        """Arguments of `_read` for a part."""
        if name:
            return f"{self.url.rstrip('/')}/{name}", self.version, count, 0, count
        return self.url, self.version, self.size, start, count

    def close(self) -> None:
        """Nothing is held open."""


def stream_of(
    part: Callable[[int, int], bytes], size: int, buffer: int = BLOCK
) -> BinaryIO:
    """A binary file of `size` bytes for zipfile and tarfile; `part(start, count)` reads it."""
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
    """Bytes of a remote file, through the cached blocks."""
    stop = min(start + count, size)
    if start >= stop:
        return b""
    first = start // BLOCK
    raw = b"".join(
        _cached((url, version, size, number)) or _fetch(url, version, size, number)
        for number in range(first, (stop - 1) // BLOCK + 1)
    )
    return raw[start - first * BLOCK : stop - first * BLOCK]


def _missing(url: str, version: str, size: int, start: int, count: int) -> list[UrlBlock]:
    stop = min(start + count, size)
    numbers = range(start // BLOCK, (max(start, stop - 1)) // BLOCK + 1) if stop else ()
    blocks = [(url, version, size, number) for number in numbers]
    return [block for block in blocks if not _place(block).exists()]


def _fetch(url: str, version: str, size: int, number: int) -> bytes:
    """Fetch one block, and cache it where the disk has room.

    Raises:
        OSError: every attempt failed.
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
            time.sleep(wait)  # the server may be back by then
            continue
        if len(raw) != stop - start:
            raise OSError(_WHOLE.format(f"{len(raw):,} bytes for {stop - start:,}"))
        break
    path = _place((url, version, size, number))
    sealed = hashlib.sha256(raw).digest() + raw
    with suppress(OSError):  # a full disk: then it is not cached
        write_whole(path, lambda temporary: temporary.write_bytes(sealed))
        _limit(os.getpid()).added(len(sealed))
    return raw


def _cached(block: UrlBlock) -> bytes | None:
    path = _place(block)
    try:
        sealed = path.read_bytes()
        if time.time() - path.stat().st_mtime > _USED_AGAIN_S:
            os.utime(path)
    except OSError:
        return None
    raw = sealed[_DIGEST:]
    if hashlib.sha256(raw).digest() != sealed[:_DIGEST]:
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
    """Bounds the cache of all processes; checked when one has added a twentieth of the limit."""

    def __init__(self) -> None:
        self._new: float = float("inf")  # bytes since the last check; the first call checks

    def added(self, count: int) -> None:
        self._new += count
        most = most_bytes()
        if self._new > most / 20:
            self._new = 0
            make_room(most)


def most_bytes() -> float:
    """Bytes that all blocks may take: KDLAB_CACHE_GB, at most half of the disk."""
    setting = os.environ.get("KDLAB_CACHE_GB", str(_CACHE_GB))
    try:
        gigabytes = float(setting)
    except ValueError as error:
        raise DataError(
            f"KDLAB_CACHE_GB is {setting!r}, but must be a number, such as 20."
        ) from error
    return min(1e9 * gigabytes, _DISK_SHARE * shutil.disk_usage(blocks_folder()).total)


def make_room(most: float) -> None:
    """Remove the least recently used blocks where all take more than `most` bytes."""
    blocks = []
    for path in blocks_folder().glob("*/*"):
        with suppress(OSError):  # another process was first
            status = path.stat()
            blocks.append((status.st_mtime, status.st_size, path))
    total = sum(size for _, size, _ in blocks)
    if total <= most:
        return
    for _, size, path in sorted(blocks):
        path.unlink(missing_ok=True)
        total -= size
        if total <= _KEPT_SHARE * most:
            return
