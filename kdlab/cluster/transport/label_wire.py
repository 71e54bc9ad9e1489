"""Requests for soft labels and their answers, directly between a reader and a teacher.

One TCP connection for each pair. Frames go both ways and in any order; a number matches
answers to requests. A frame is

    4 bytes    "kdl1"
    4 bytes    length of the header, little endian
    8 bytes    length of the body
    header     JSON: the number, the request, and name, type and shape of each array
    body       the arrays, one behind the other

Nothing in it is a pickle. With TLS in the settings (security.py) both ends show a
certificate, as on Dask's own connections; on the machine of a local pool each end proves
that it knows the pool's token before the first frame:

    reader     "kdlA" and 16 random bytes c
    teacher    16 random bytes t, HMAC(token, "teacher", c, t, its host and port)
    reader     HMAC(token, "reader", c, t, the host and port that it has called)

A teacher takes a limited number of connections, and of open requests on each. Beyond that
it stops reading until some are answered, so a reader that asks too much waits and memory
stays bounded. A connection without a request for ten minutes is closed: its reader's machine
may be lost without notice.

Dask's RPC carried this before and still carries all rare messages. It costs each
end about 0.5 ms of processor time per request: a fifth of a step of 5 ms, and memory and
caches that the trainer beside it lacks (`kdlab bench transport`, `bench edl_dist`).
"""

import asyncio
import secrets
from collections.abc import Callable, Mapping

from distributed.security import Security

from kdlab.cluster.transport.frames import Arrays, Frames, ProtocolError
from kdlab.cluster.transport.security import token

Reply = Callable[[Arrays | Exception], None]
Handler = Callable[[dict[str, object], Arrays, Reply], None]

_LARGEST_ANSWER = 2**28  # bytes
_CONNECT_S = 5.0
_HELLO = b"kdlA"
_NONCE, _PROOF = 16, 32  # bytes
_MAX_CONNECTIONS = 128  # at a teacher; the usual limit of a process is 1024 open files
_MAX_OPEN = 256  # unanswered requests of a connection
_IDLE_S = 600.0  # without a request, then closed; a reader that needs it reconnects


class LabelClient(Frames):
    """The reader's end of a connection."""

    def __init__(self) -> None:
        super().__init__(lambda: _LARGEST_ANSWER, token())
        self._open: dict[object, asyncio.Future[tuple[dict[str, object], Arrays]]] = {}
        self._asked = 0
        self._retired = False
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if self.greeted:
            self.ready.set_result(None)
            return
        self.bind_to("peername")
        self.nonces = secrets.token_bytes(_NONCE)
        self.transport.write(_HELLO + self.nonces)

    def greeting(self, received: bytes) -> int:
        if len(received) < _NONCE + _PROOF:
            return 0
        self.nonces += received[:_NONCE]
        self.check_proof(received[_NONCE : _NONCE + _PROOF], b"teacher")
        self.transport.write(self.proof(b"reader"))
        self.greeted = True
        self.ready.set_result(None)
        return _NONCE + _PROOF

    @property
    def usable(self) -> bool:
        return not self._retired and not self.transport.is_closing()

    def ask(
        self, header: Mapping[str, object], arrays: Arrays
    ) -> "asyncio.Future[tuple[dict[str, object], Arrays]]":
        """Send a request and return a future of the answer's header and arrays.

        The future raises ConnectionError where the connection breaks first, and ProtocolError
        where the answer cannot be read.
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
        if future is not None and not future.done():  # else it is awaited no longer
            future.set_result((header, arrays))
        if self._retired:
            self.retire()

    def on_nonsense(self, error: Exception) -> None:
        for future in self._open.values():
            if not future.done():
                future.set_exception(ProtocolError(brief(error)))
        self._open.clear()
        if not self.ready.done():
            self.ready.set_exception(ConnectionError(brief(error)))

    def retire(self) -> None:
        """Close as soon as no answer is awaited."""
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


class LabelServerProtocol(Frames):
    """The teacher's end: the handler gets each request and a callback for its answer.

    The handler calls it once, in this event loop, with arrays or an error.
    """

    def __init__(
        self,
        handler: Handler,
        largest: Callable[[], int],
        secret: bytes | None,
        connected: "set[LabelServerProtocol]",
    ) -> None:
        super().__init__(largest, secret)
        self._handler, self._connected = handler, connected
        self._open = 0  # requests without an answer
        self._used = 0.0  # loop's time of the last request or answer
        self._late: asyncio.TimerHandle | None = None  # closes an unused connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if len(self._connected) >= _MAX_CONNECTIONS:
            self.transport.abort()
            return
        self._connected.add(self)
        loop = asyncio.get_running_loop()
        if self.greeted:
            self._end_if_idle()
        else:
            self._late = loop.call_later(_CONNECT_S, self.transport.abort)

    def _end_if_idle(self) -> None:
        """Close the connection if it was idle for long enough, else check again later."""
        loop = asyncio.get_running_loop()
        self._used = self._used or loop.time()
        left_s = self._used + _IDLE_S - loop.time()
        if self._open:
            left_s = _IDLE_S
        if left_s <= 0:
            self.transport.close()
        else:
            self._late = loop.call_later(left_s, self._end_if_idle)

    def greeting(self, received: bytes) -> int:
        if not self.nonces:
            if len(received) < len(_HELLO) + _NONCE:
                return 0
            if not received.startswith(_HELLO):
                raise ProtocolError("a connection without a greeting")
            self.bind_to("sockname")
            nonce = secrets.token_bytes(_NONCE)
            self.nonces = received[len(_HELLO) : len(_HELLO) + _NONCE] + nonce
            self.transport.write(nonce + self.proof(b"teacher"))
            return len(_HELLO) + _NONCE
        if len(received) < _PROOF:
            return 0
        self.check_proof(received[:_PROOF], b"reader")
        self.greeted = True
        if self._late is not None:
            self._late.cancel()
        self._end_if_idle()
        return _PROOF

    def on_frame(self, header: dict[str, object], arrays: Arrays) -> None:
        number = header.pop("number")
        self._open += 1
        self._used = asyncio.get_running_loop().time()
        if self._open == _MAX_OPEN:
            self.transport.pause_reading()
        self._handler(header, arrays, lambda answer: self._reply(number, answer))

    def _reply(self, number: object, answer: Arrays | Exception) -> None:
        self._open -= 1
        self._used = asyncio.get_running_loop().time()
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
    """Serve requests on a port of the host, which `port_of` returns.

    Args:
        host: one address.
        handler: gets each request.
        largest: most bytes of a request's arrays, now; a larger request aborts its connection.
        port: 0 takes any free port.
    """
    secret = token()
    context = None if secret else Security().get_listen_args("worker").get("ssl_context")
    connected: set[LabelServerProtocol] = set()
    loop = asyncio.get_running_loop()
    return await loop.create_server(
        lambda: LabelServerProtocol(handler, largest, secret, connected),
        host,
        port,
        ssl=context,
        ssl_handshake_timeout=None if context is None else _CONNECT_S,
    )


def port_of(server: asyncio.Server) -> int:
    return int(server.sockets[0].getsockname()[1])


async def connect(host: str, port: int) -> LabelClient:
    """Connect to a teacher.

    Raises:
        OSError, TimeoutError: no answer, or none with the pool's certificates or token.
    """
    arguments = Security().get_connection_args("client")
    context = None if token() else arguments.get("ssl_context")
    opening = asyncio.get_running_loop().create_connection(
        LabelClient, host, port, ssl=context
    )
    transport, client = await asyncio.wait_for(opening, _CONNECT_S)
    try:
        await asyncio.wait_for(client.ready, _CONNECT_S)
    except BaseException:
        transport.abort()
        raise
    return client
