"""Requests for soft labels and their answers, straight between a reader and a teacher.

One TCP connection for each pair. Frames go both ways and in any order; a number says
which request an answer belongs to. A frame is

    4 bytes    "kdl1"
    4 bytes    length of the header, little endian
    8 bytes    length of the body
    header     JSON: the number, what is asked, and name, type and shape of each array
    body       the arrays, one behind the other

Nothing in it is a pickle. With TLS in the settings (security.py) both ends show a
certificate, as on Dask's own connections; on the machine of a local pool each proves to
know the pool's token before the first frame:

    reader     "kdlA" and 16 random bytes c
    teacher    16 random bytes t, HMAC(token, "teacher", c, t)
    reader     HMAC(token, "reader", c, t)

A teacher takes so many connections and so many open requests on each; beyond, it reads no
more until some are answered, so a reader that asks too much waits and no memory fills up.

Dask's RPC carried this before and still carries everything that is rare. It costs each
end about 0.5 ms of processor time per request: a fifth of a step of 5 ms, and memory and
caches that the trainer beside it misses (`kdlab bench transport`, `bench edl_dist`).
"""

import asyncio
import hashlib
import hmac
import json
import secrets
import struct
from collections.abc import Callable, Mapping
from math import prod
from typing import Any

import numpy as np
from distributed.security import Security
from numpy.typing import NDArray

from kdlab.cluster.wires.security import token

Arrays = dict[str, NDArray[Any]]
Reply = Callable[[Arrays | Exception], None]
Handler = Callable[[dict[str, object], Arrays, Reply], None]
About = list[tuple[str, str, tuple[int, ...]]]  # name, type and shape of each array

_PREFIX = struct.Struct("<4sIQ")
_MAGIC = b"kdl1"
_BUFFER = 16 * 1024  # bytes; larger bodies are received in place
_LARGEST_HEADER = _BUFFER - _PREFIX.size
_LARGEST_ANSWER = 2**28  # bytes
_TYPES = ("|u1", "<i4", "<i8", "<f2", "<f4")
_CONNECT_S = 5.0
_HELLO = b"kdlA"
_NONCE, _PROOF = 16, 32  # bytes
_MAX_CONNECTIONS = 128  # at a teacher; processes may often open 1024 files, not more
_MAX_OPEN = 256  # requests of a connection that have no answer yet


class NotOurs(ValueError):
    """The other end speaks something else, or another version."""


class _Frames(asyncio.BufferedProtocol):
    """Cuts the stream into frames, and writes them."""

    transport: asyncio.Transport

    def __init__(self, largest: Callable[[], int], secret: bytes | None) -> None:
        self._largest = largest  # bytes of a body
        self._buffer = bytearray(_BUFFER)
        self._end = 0  # bytes of it that are filled
        self._head: tuple[dict[str, object], About] = ({}, [])
        self._body: bytearray | None = None  # of a frame that is larger than the buffer
        self._got = 0  # bytes of it
        self._token = secret  # both ends prove to know it; None asks for nothing
        self._greeted = self._token is None  # frames may come
        self._nonces = b""

    def on_frame(self, header: dict[str, object], arrays: Arrays) -> None:
        raise NotImplementedError

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def write(self, header: Mapping[str, object], arrays: Arrays) -> None:
        about = [[name, a.dtype.str, a.shape] for name, a in arrays.items()]
        head = json.dumps({**header, "arrays": about}).encode()
        bodies = [np.ascontiguousarray(a) for a in arrays.values()]
        prefix = _PREFIX.pack(_MAGIC, len(head), sum(a.nbytes for a in bodies))
        # One system call for what is small, no copy of what is large.
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
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            self.on_nonsense(error)
            self.transport.abort()

    def on_nonsense(self, error: Exception) -> None:
        """A frame that cannot be read: nothing after it can be either."""

    def greeting(self, received: bytes) -> int:
        """Before the first frame: how many bytes of what was received are used up; 0 waits.

        Raises:
            NotOurs: the other end does not know the token.
        """
        raise NotImplementedError

    def _proof(self, who: bytes) -> bytes:
        assert self._token is not None
        return hmac.digest(self._token, who + self._nonces, hashlib.sha256)

    def _check_proof(self, received: bytes, who: bytes) -> None:
        if not hmac.compare_digest(received, self._proof(who)):
            raise NotOurs("the other end does not know this pool's token")

    def _greet(self) -> None:
        while not self._greeted:
            used = self.greeting(bytes(self._buffer[: self._end]))
            if not used:
                return
            rest = bytes(self._buffer[used : self._end])
            self._buffer[: len(rest)] = rest
            self._end = len(rest)

    def _cut(self) -> None:
        self._greet()
        if not self._greeted:
            return
        view, start = memoryview(self._buffer), 0
        while self._end - start >= _PREFIX.size:
            magic, head_size, body_size = _PREFIX.unpack_from(self._buffer, start)
            if magic != _MAGIC or head_size > _LARGEST_HEADER:
                raise NotOurs(f"a frame begins with {magic!r}")
            if body_size > self._largest():
                raise NotOurs(f"a body of {body_size} bytes, at most {self._largest()}")
            at = start + _PREFIX.size + head_size
            if at > self._end:
                break
            header = json.loads(bytes(view[start + _PREFIX.size : at]))
            about: About = header.pop("arrays")  # the next line checks it
            if _bytes_of(about) != body_size:  # before memory is taken for it
                raise NotOurs(
                    f"the arrays do not make up the {body_size} bytes of the body"
                )
            here = min(body_size, self._end - at)
            body = bytearray(body_size)
            body[:here] = view[at : at + here]
            start = at + here
            if here < body_size:
                self._head, self._body, self._got = (header, about), body, here
                break
            self.on_frame(header, _arrays_in(about, body))
        rest = self._end - start
        view[:rest] = bytes(view[start : self._end])
        self._end = rest


def _bytes_of(about: About) -> int:
    """What these arrays take together.

    Raises:
        NotOurs: an unknown type or shape.
    """
    total = 0
    for name, kind, shape in about:
        sizes = all(type(n) is int and 0 <= n < 2**40 for n in shape)
        if kind not in _TYPES or not sizes or len(shape) > 8:
            raise NotOurs(f"array {name!r} of type {kind!r} and shape {shape!r}")
        total += np.dtype(kind).itemsize * prod(shape)
    return total


def _arrays_in(about: About, body: bytearray) -> Arrays:
    """Writeable, over the body's own memory, which they fill."""
    found: Arrays = {}
    at = 0
    for name, kind, shape in about:
        found[name] = np.frombuffer(body, kind, prod(shape), at).reshape(shape)
        at += found[name].nbytes
    return found


class Asker(_Frames):
    """The reader's end."""

    def __init__(self) -> None:
        super().__init__(lambda: _LARGEST_ANSWER, token())
        self._open: dict[object, asyncio.Future[tuple[dict[str, object], Arrays]]] = {}
        self._asked = 0
        self._retired = False
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if self._greeted:
            self.ready.set_result(None)
            return
        self._nonces = secrets.token_bytes(_NONCE)
        self.transport.write(_HELLO + self._nonces)

    def greeting(self, received: bytes) -> int:
        if len(received) < _NONCE + _PROOF:
            return 0
        self._nonces += received[:_NONCE]
        self._check_proof(received[_NONCE : _NONCE + _PROOF], b"teacher")
        self.transport.write(self._proof(b"reader"))
        self._greeted = True
        self.ready.set_result(None)
        return _NONCE + _PROOF

    @property
    def usable(self) -> bool:
        return not self._retired and not self.transport.is_closing()

    def ask(
        self, header: Mapping[str, object], arrays: Arrays
    ) -> "asyncio.Future[tuple[dict[str, object], Arrays]]":
        """The answer; ConnectionError when the connection breaks before it.

        NotOurs when what comes cannot be read.
        """
        number = self._asked = self._asked + 1
        future = asyncio.get_running_loop().create_future()
        if self.transport.is_closing():
            future.set_exception(ConnectionError("the connection is closed"))
            return future
        self._open[number] = future
        self.write({**header, "number": number}, arrays)
        return future

    def on_frame(self, header: dict[str, object], arrays: Arrays) -> None:
        future = self._open.pop(header["number"], None)
        if future is not None and not future.done():  # else nobody waits any more
            future.set_result((header, arrays))
        if self._retired:
            self.retire()

    def on_nonsense(self, error: Exception) -> None:
        for future in self._open.values():
            if not future.done():
                future.set_exception(NotOurs(brief(error)))
        self._open.clear()
        if not self.ready.done():
            self.ready.set_exception(ConnectionError(brief(error)))

    def retire(self) -> None:
        """Close as soon as nothing is awaited."""
        self._retired = True
        if not any(not future.done() for future in self._open.values()):
            self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.ready.done():
            self.ready.set_exception(ConnectionError("it closed the connection"))
        for future in self._open.values():
            if not future.done():
                broken = ConnectionError(str(exc) if exc else "closed by the teacher")
                future.set_exception(broken)
        self._open.clear()


class Answerer(_Frames):
    """The teacher's end: the handler gets each request with the way to answer it.

    That way is called once, in this event loop, with arrays or with an error.
    """

    def __init__(
        self,
        handler: Handler,
        largest: Callable[[], int],
        secret: bytes | None,
        connected: "set[Answerer]",
    ) -> None:
        super().__init__(largest, secret)
        self._handler, self._connected = handler, connected
        self._open = 0  # requests without an answer
        self._late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if len(self._connected) >= _MAX_CONNECTIONS:
            self.transport.abort()
            return
        self._connected.add(self)
        if not self._greeted:
            loop = asyncio.get_running_loop()
            self._late = loop.call_later(_CONNECT_S, self.transport.abort)

    def greeting(self, received: bytes) -> int:
        if not self._nonces:
            if len(received) < len(_HELLO) + _NONCE:
                return 0
            if not received.startswith(_HELLO):
                raise NotOurs("a connection without a greeting")
            own = secrets.token_bytes(_NONCE)
            self._nonces = received[len(_HELLO) : len(_HELLO) + _NONCE] + own
            self.transport.write(own + self._proof(b"teacher"))
            return len(_HELLO) + _NONCE
        if len(received) < _PROOF:
            return 0
        self._check_proof(received[:_PROOF], b"reader")
        self._greeted = True
        if self._late is not None:
            self._late.cancel()
        return _PROOF

    def on_frame(self, header: dict[str, object], arrays: Arrays) -> None:
        number = header.pop("number")
        self._open += 1
        if self._open == _MAX_OPEN:
            self.transport.pause_reading()
        self._handler(header, arrays, lambda answer: self._reply(number, answer))

    def _reply(self, number: object, answer: Arrays | Exception) -> None:
        self._open -= 1
        if self.transport.is_closing():
            return  # the reader is gone
        if isinstance(answer, Exception):
            self.write({"number": number, "error": brief(answer)}, {})
        else:
            self.write({"number": number}, answer)
        if self._open == _MAX_OPEN - 1:
            self.transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self._connected.discard(self)
        if self._late is not None:
            self._late.cancel()


def brief(error: BaseException) -> str:
    text = str(error).split("\n", 1)[0]
    return f"{type(error).__name__}: {text}"[:300]


async def listen(
    host: str, handler: Handler, largest: Callable[[], int], port: int = 0
) -> asyncio.Server:
    """Answer on a port of the host; `port_of` says which.

    Args:
        host: one address.
        handler: gets each request.
        largest: bytes of a request's arrays, at this moment; more is cut off.
        port: 0 is any that is free.
    """
    secret = token()
    context = None if secret else Security().get_listen_args("worker").get("ssl_context")
    connected: set[Answerer] = set()
    loop = asyncio.get_running_loop()
    return await loop.create_server(
        lambda: Answerer(handler, largest, secret, connected), host, port, ssl=context
    )


def port_of(server: asyncio.Server) -> int:
    return int(server.sockets[0].getsockname()[1])


async def connect(host: str, port: int) -> Asker:
    """A new connection.

    Raises:
        OSError, TimeoutError: nobody answers there, or not with our certificates or token.
    """
    arguments = Security().get_connection_args("client")
    context = None if token() else arguments.get("ssl_context")
    opening = asyncio.get_running_loop().create_connection(Asker, host, port, ssl=context)
    transport, asker = await asyncio.wait_for(opening, _CONNECT_S)
    try:
        await asyncio.wait_for(asker.ready, _CONNECT_S)
    except BaseException:
        transport.abort()
        raise
    return asker
