"""Fetch weights that a teacher cannot read at their path, from a peer or the coordinator."""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np

from kdlab.cluster.coordination.coordinator_messages import WeightsSource
from kdlab.cluster.deployment import Deployment
from kdlab.cluster.transport.frames import Arrays
from kdlab.cluster.transport.label_wire import connect
from kdlab.cluster.transport.wire import CALL_S
from kdlab.codec import MessageError, from_builtins, to_builtins
from kdlab.config.seal import file_sha256

_PIECE = 1 << 20  # bytes of weights in one answer
AskCoordinator = Callable[..., Awaitable[object]]  # takes an operation and its arguments


@dataclass(frozen=True, slots=True)
class PieceRequest:
    """Request of a teacher to another one for a piece of a file."""

    weights: str  # sha256
    offset: int


def piece_for(asked: Mapping[str, object], files: Mapping[str, Path]) -> Arrays:
    """Answer a `PieceRequest` from files by sha256.

    Raises:
        ValueError: it asks for something else.
    """
    try:
        request = from_builtins(PieceRequest, asked)
    except MessageError as error:
        raise ValueError(str(error)) from error
    path = files.get(request.weights)
    if path is None or request.offset < 0:
        raise ValueError("these weights are not served here")
    with path.open("rb") as file:
        file.seek(request.offset)
        piece = np.frombuffer(file.read(_PIECE), np.uint8)
    return {"piece": piece, "size": np.array([path.stat().st_size], np.int64)}


async def weights_for(
    deployment: Deployment, scratch: Path, ask: AskCoordinator
) -> list[Path]:
    """Paths of a deployment's weights: as deployed, or copies that are fetched to `scratch`."""
    paths = []
    for member in deployment.members:
        path = Path(member.weights)
        if not await asyncio.to_thread(_readable, path, member.sha256):
            path = _copy(scratch, member.sha256)
        if not await asyncio.to_thread(_readable, path, member.sha256):
            await _fetch(member.sha256, path, ask)
        paths.append(path)
    return paths


def remove_other_copies(deployment: Deployment, scratch: Path) -> None:
    """Remove copies of weights that are no longer served."""
    served = {_copy(scratch, member.sha256) for member in deployment.members}
    for path in set(scratch.glob("*.safetensors")) - served:
        path.unlink(missing_ok=True)


def _copy(scratch: Path, sha256: str) -> Path:
    return scratch / f"{sha256}.safetensors"


def _readable(path: Path, sha256: str) -> bool:
    return path.is_file() and file_sha256(path) == sha256


async def _fetch(sha256: str, path: Path, ask: AskCoordinator) -> None:
    """Fetch weights in pieces, from a teacher that has them or else from the coordinator.

    Raises:
        OSError, TimeoutError: the sender went away, or sent something else.
    """
    while True:
        source = from_builtins(WeightsSource, await ask("weights_source", sha256=sha256))
        if source.wait_s is None:
            break
        await asyncio.sleep(source.wait_s)  # until a peer has them, or a turn comes
    if source.peer is not None:
        pieces = _pieces_of_peer(sha256, *source.peer)
    else:
        pieces = _pieces_of_coordinator(sha256, source.size or 0, ask)
    arrived = path.with_suffix(".part")
    digest = hashlib.sha256()
    with arrived.open("wb") as file:
        async for piece in pieces:
            digest.update(piece)
            await asyncio.to_thread(file.write, piece)
    if digest.hexdigest() != sha256:
        arrived.unlink()
        raise ConnectionError(f"weights that arrived are not those of {sha256[:16]}")
    arrived.replace(path)


async def _pieces_of_peer(sha256: str, address: str, port: int) -> AsyncIterator[bytes]:
    peer = await connect(urlsplit(address).hostname or "", port)
    try:
        got, size = 0, 1
        while got < size:
            asked = peer.ask(to_builtins(PieceRequest(sha256, got)), {})
            reply, arrays = await asyncio.wait_for(asked, CALL_S)
            if "error" in reply or not len(arrays["piece"]):
                raise ConnectionError(f"no weights from {address}: {reply}")
            size = int(arrays["size"][0])
            yield arrays["piece"].tobytes()
            got += len(arrays["piece"])
    finally:
        peer.retire()


async def _pieces_of_coordinator(
    sha256: str, size: int, ask: AskCoordinator
) -> AsyncIterator[bytes]:
    got = 0
    while got < size:
        piece = from_builtins(bytes, await ask("weights", sha256=sha256, offset=got))
        if not piece:
            raise ConnectionError("the coordinator has no more of these weights")
        yield piece
        got += len(piece)
