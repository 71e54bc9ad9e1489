"""Frames of the label wire (label_wire.py): a stream of bytes cut into headers and arrays.

Input is checked before use: sizes and types before memory is allocated for them, and nothing is
read before the peer has proved that it knows the pool's token.
"""

import asyncio
import hashlib
import hmac
import json
import struct
from collections.abc import Callable, Mapping
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kdlab.codec import MessageError, from_builtins, from_json

Arrays = dict[str, NDArray[Any]]
About = list[tuple[str, str, tuple[int, ...]]]  # name, type and shape of each array

_PREFIX = struct.Struct("<4sIQ")
_MAGIC = b"kdl1"
_BUFFER = 16 * 1024  # bytes; larger bodies are received into their own memory
_LARGEST_HEADER = _BUFFER - _PREFIX.size
_TYPES = ("|u1", "<u2", "<i4", "<i8", "<f2", "<f4")


class ProtocolError(ValueError):
    """The peer speaks another protocol, or another version of it."""


def _encode_header(header: Mapping[str, object], arrays: Arrays) -> bytes:
    about = [[name, a.dtype.str, a.shape] for name, a in arrays.items()]
    return json.dumps({**header, "arrays": about}).encode()


def size_of(header: Mapping[str, object], arrays: Arrays) -> int:
    """Bytes of a frame, without the overhead of TLS and TCP."""
    body = sum(array.nbytes for array in arrays.values())
    return _PREFIX.size + len(_encode_header(header, arrays)) + body


class Frames(asyncio.BufferedProtocol):
    """Reads and writes frames on a stream."""

    transport: asyncio.Transport

    def __init__(self, largest: Callable[[], int], secret: bytes | None) -> None:
        self._largest = largest  # bytes of a body
        self._buffer = bytearray(_BUFFER)
        self._end = 0  # bytes of the buffer that are filled
        self._head: tuple[dict[str, object], About] = ({}, [])
        self._body: bytearray | None = None  # of a frame that is larger than the buffer
        self._got = 0  # bytes of the body that arrived
        self.token = secret  # both ends prove that they know it; None needs no proof
        self.greeted = self.token is None  # the proofs are done, frames may come
        self.nonces = b""
        self.place = b""  # host and port at which the teacher listens

    def on_frame(self, header: dict[str, object], arrays: Arrays) -> None:
        raise NotImplementedError

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def bind_to(self, end: str) -> None:
        """Bind proofs to the teacher's host and port, so that nobody can relay them.

        Args:
            end: which end of this transport the teacher is, "peername" or "sockname".
        """
        self.place = repr(self.transport.get_extra_info(end)[:2]).encode()

    def write(self, header: Mapping[str, object], arrays: Arrays) -> None:
        head = _encode_header(header, arrays)
        bodies = [np.ascontiguousarray(a) for a in arrays.values()]
        prefix = _PREFIX.pack(_MAGIC, len(head), sum(a.nbytes for a in bodies))
        # One system call for small frames, no copy of large ones.
        if sum(a.nbytes for a in bodies) <= _BUFFER:
            self.transport.write(b"".join([prefix, head, *(a.tobytes() for a in bodies)]))
            return
        self.transport.write(prefix + head)
        for array in bodies:
            self.transport.write(array.data.cast("B"))

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._body is not None:
            return memoryview(self._body)[self._got :]
        return memoryview(self._buffer)[self._end :]

    def buffer_updated(self, count: int) -> None:
        try:
            if self._body is None:
                self._end += count
                self._cut()
                return
            self._got += count
            if self._got == len(self._body):
                (header, about), body, self._body = self._head, self._body, None
                self.on_frame(header, _arrays_in(about, body))
        except (AttributeError, KeyError, MessageError, TypeError, ValueError) as error:
            self.on_nonsense(error)
            self.transport.abort()

    def on_nonsense(self, error: Exception) -> None:
        """Handle a frame that cannot be read; the connection is aborted after it."""

    def greeting(self, received: bytes) -> int:
        """Process the greeting and return the bytes that it used; 0 waits for more.

        Raises:
            ProtocolError: the peer does not know the token.
        """
        raise NotImplementedError

    def proof(self, who: bytes) -> bytes:
        assert self.token is not None
        return hmac.digest(self.token, who + self.nonces + self.place, hashlib.sha256)

    def check_proof(self, received: bytes, who: bytes) -> None:
        if not hmac.compare_digest(received, self.proof(who)):
            raise ProtocolError("the peer does not know this pool's token")

    def _greet(self) -> None:
        while not self.greeted:
            used = self.greeting(bytes(self._buffer[: self._end]))
            if not used:
                return
            rest = bytes(self._buffer[used : self._end])
            self._buffer[: len(rest)] = rest
            self._end = len(rest)

    def _cut(self) -> None:
        self._greet()
        if not self.greeted:
            return
        view, start = memoryview(self._buffer), 0
        while self._end - start >= _PREFIX.size:
            magic, head_size, body_size = _PREFIX.unpack_from(self._buffer, start)
            if magic != _MAGIC or head_size > _LARGEST_HEADER:
                raise ProtocolError(f"a frame begins with {magic!r}")
            if body_size > self._largest():
                raise ProtocolError(
                    f"a body of {body_size} bytes, at most {self._largest()}"
                )
            at = start + _PREFIX.size + head_size
            if at > self._end:
                break
            header = from_json(dict[str, object], bytes(view[start + _PREFIX.size : at]))
            about = from_builtins(About, header.pop("arrays"))
            if _bytes_of(about) != body_size:  # before memory is allocated
                raise ProtocolError(
                    f"the arrays do not make up the {body_size} bytes of the body"
                )
            arrived = min(body_size, self._end - at)
            body = bytearray(body_size)
            body[:arrived] = view[at : at + arrived]
            start = at + arrived
            if arrived < body_size:
                self._head, self._body, self._got = (header, about), body, arrived
                break
            self.on_frame(header, _arrays_in(about, body))
        rest = self._end - start
        view[:rest] = bytes(view[start : self._end])
        self._end = rest


def _bytes_of(about: About) -> int:
    """Total bytes of arrays with these types and shapes.

    Raises:
        ProtocolError: an unknown type or shape.
    """
    total = 0
    for name, kind, shape in about:
        sizes = all(0 <= n < 2**40 for n in shape)
        if kind not in _TYPES or not sizes or len(shape) > 8:
            raise ProtocolError(f"array {name!r} of type {kind!r} and shape {shape!r}")
        total += np.dtype(kind).itemsize * prod(shape)
    return total


def _arrays_in(about: About, body: bytearray) -> Arrays:
    """Writeable views of the body's memory."""
    arrays: Arrays = {}
    at = 0
    for name, kind, shape in about:
        arrays[name] = np.frombuffer(body, kind, prod(shape), at).reshape(shape)
        at += arrays[name].nbytes
    return arrays
