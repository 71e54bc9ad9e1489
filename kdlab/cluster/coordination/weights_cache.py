"""Cache of weights that runs upload, for teachers that cannot read their path.

It serves few teachers at once, so that leases come first; teachers that have the weights serve
others.
"""

import asyncio
import random
import shutil
import tempfile
import time
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

from kdlab.cluster.coordination.coordinator_messages import WeightsSource

_CHUNK = 1 << 20  # bytes of weights in one answer; a renewal waits for no more
_STREAMS = 2  # teachers served at once; others wait, or ask these
_STREAM_S = 10.0  # without a request: that teacher counts as gone


class WeightsCache:
    """Files by sha256, on the machine of the scheduler."""

    def __init__(self) -> None:
        self._streams: dict[str, float] = {}  # time of the last request, by teacher

    @cached_property
    def folder(self) -> Path:
        """Folder of the files, created for the first one; it survives a killed scheduler."""
        return Path(tempfile.mkdtemp(prefix="kdlab-weights-"))

    async def put(self, sha256: str, offset: int, chunk: bytes) -> int:
        """Append the next chunk of a file and return the bytes that are there now."""
        path = self._path(sha256)
        have = path.stat().st_size if path.is_file() else 0
        if offset == have:
            await asyncio.to_thread(_append, path, chunk)
            have += len(chunk)
        return have

    def source(
        self, address: str, sha256: str, peers: Sequence[tuple[str, int]]
    ) -> WeightsSource:
        """Choose where a teacher gets weights.

        Args:
            address: of the teacher.
            sha256: of the weights.
            peers: addresses and ports of the teachers that have them.

        Raises:
            FileNotFoundError: no teacher has them, and neither has this cache.
        """
        if peers:
            return WeightsSource(peer=random.choice(peers))
        path = self._path(sha256)
        if not path.is_file():
            raise FileNotFoundError(
                "neither this pool nor a teacher of it has these weights; the run that "
                "deployed them uploads them while it is up"
            )
        now = time.monotonic()
        self._streams = {a: at for a, at in self._streams.items() if now - at < _STREAM_S}
        if address not in self._streams and len(self._streams) >= _STREAMS:
            return WeightsSource(wait_s=0.5)
        self._streams[address] = now
        return WeightsSource(size=path.stat().st_size)

    async def piece(self, address: str, sha256: str, offset: int) -> bytes:
        """Read one chunk of a file, at most 1 MiB, for a teacher."""
        self._streams[address] = time.monotonic()
        path = self._path(sha256)
        piece = await asyncio.to_thread(_piece, path, offset)
        if offset + len(piece) >= path.stat().st_size:
            del self._streams[address]
        return piece

    def _path(self, sha256: str) -> Path:
        if len(sha256) != 64 or not set(sha256) <= set("0123456789abcdef"):
            raise ValueError(f"{sha256[:80]!r} is no sha256")
        return self.folder / sha256

    async def close(self) -> None:
        if "folder" in vars(self):
            await asyncio.to_thread(shutil.rmtree, self.folder, ignore_errors=True)


def _append(path: Path, chunk: bytes) -> None:
    with path.open("ab") as file:
        file.write(chunk)


def _piece(path: Path, offset: int) -> bytes:
    with path.open("rb") as file:
        file.seek(offset)
        return file.read(_CHUNK)
