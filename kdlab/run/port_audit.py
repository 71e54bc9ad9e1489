"""Audit of the ports that kdlab's processes listen on, probed as a stranger would.

Each port is probed without certificate, token or password, in the protocols of its servers.
A port that answers such a probe is open to anyone who reaches it: every user of the machine
on loopback, and the network where it listens on another address.
"""

import contextlib
import ipaddress
import os
import re
import socket
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from kdlab.config.home import home_path, runs_folder

_PATIENCE_S = 1.0  # for an answer of a process on this machine
_HTTP = b"GET / HTTP/1.0\r\nHost: 127.0.0.1\r\n\r\n"


@dataclass(frozen=True, slots=True)
class OpenPort:
    """A port that a process of kdlab listens on.

    pid, program: its process, and the module that it runs.
    host, port: address it listens on.
    guard: its protection against strangers; empty when it answers them.
    """

    pid: int
    program: str
    host: str
    port: int
    guard: str

    @property
    def within_reach_of(self) -> str:
        loopback = ipaddress.ip_address(self.host).is_loopback
        return "users of this machine" if loopback else "users of the network"


def listening() -> Iterator[OpenPort]:
    """Yield the ports of this user's kdlab processes on this machine, each probed."""
    for process in psutil.process_iter(["cmdline", "uids"]):
        words = process.info["cmdline"] or []
        mine = process.info["uids"] is not None and process.info["uids"].real == os.getuid()
        if not mine or not any("kdlab" in word for word in words):
            continue
        with contextlib.suppress(psutil.Error):  # it ended meanwhile
            for connection in process.net_connections("tcp"):
                if connection.status == psutil.CONN_LISTEN:
                    host, port = connection.laddr.ip, connection.laddr.port
                    yield OpenPort(
                        process.pid, program_of(words), host, port, guard(host, port)
                    )


def guard(host: str, port: int) -> str:
    """Return how a server protects itself from strangers; empty when it answers them."""
    reached = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    try:
        first = _reply(reached, port, b"")
        if first:  # Dask greets every client, and then runs its commands
            return ""
        page = _reply(reached, port, _HTTP)
    except OSError:
        return "takes no connection"
    if page.startswith(b"HTTP/"):
        refused = page.split(b" ", 2)[1:2] in ([b"401"], [b"403"])
        return "asks for a token" if refused else ""
    if _speaks_tls(reached, port):
        return "asks for a certificate"
    return "answers nothing to strangers"  # a label wire before its token, gloo


def _reply(host: str, port: int, words: bytes) -> bytes:
    """Send bytes and return the reply; empty when the server waits or closes."""
    with socket.create_connection((host, port), _PATIENCE_S) as wire:
        wire.settimeout(_PATIENCE_S if words else _PATIENCE_S / 4)
        with contextlib.suppress(TimeoutError, ConnectionError):
            wire.sendall(words)
            return wire.recv(1000)
    return b""


def _speaks_tls(host: str, port: int) -> bool:
    """Return whether a TLS server answers, which stops strangers without a certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        with (
            socket.create_connection((host, port), _PATIENCE_S) as wire,
            context.wrap_socket(wire) as encrypted,
        ):
            return encrypted.version() is not None
    except ssl.SSLError as error:
        return "WRONG_VERSION" not in str(error) and "EOF" not in str(error)
    except OSError:
        return False


def program_of(words: list[str]) -> str:
    """Return the kdlab module of a command line, or its program."""
    modules = re.findall(r"(?<![\w/.])kdlab[\w.]*", " ".join(words))
    named = [name for name in modules if name != "kdlab.supervision"]
    return named[0] if named else Path("".join(words[:1])).name


def readable() -> list[Path]:
    """Return files and folders of kdlab (runs, models, images, MLflow) that others can read."""
    folders = (runs_folder(), home_path())
    roots = [root for root in folders if root.is_dir() and _is_open(root)]
    return sorted(path for root in roots for path in root.iterdir() if _is_open(path))


def _is_open(path: Path) -> bool:
    try:
        return bool(path.stat().st_mode & 0o077)
    except FileNotFoundError:  # it went meanwhile
        return False
