"""Who may talk to a pool: certificates for Dask's connections, a token for the label wire.

Dask's messages are pickles: whoever can connect can run code, and on a shared machine every
user can connect to loopback. So a local pool makes certificates of its own for each run, and
a token that both ends of a label wire prove to know; other users of the machine can read
neither file. Loopback carries the labels themselves in the open: nobody else can listen
there, and encrypting pixels would cost what the wire saves. Across machines `tls` makes both
ends of everything show a certificate that the same authority signed.
"""

import json
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import dask
from distributed.http.routing import RoutingApplication
from distributed.security import Security
from tornado.httpserver import HTTPServer

from kdlab.config import Fault
from kdlab.config.home import home, recall_as
from kdlab.config.spec import Spec
from kdlab.errors import BadInput

Files = dict[str, str]  # ca, cert, key, and of a local pool token -> path

_ROLES = ("scheduler", "worker", "client")
_token: bytes | None = None  # of this process, set by `use`


@dataclass(frozen=True, kw_only=True)
class Tls(Spec):
    """Certificates, as PEM files that exist on each machine.

    temporary: one made for this run and shared by all its processes on this machine.
    ca, cert, key: the authority, and the certificate and key both ends show.
    """

    temporary: bool = False
    ca: str | None = None
    cert: str | None = None
    key: str | None = None

    def cross_faults(self) -> Iterator[Fault]:
        given = {name: getattr(self, name) for name in ("ca", "cert", "key")}
        if self.temporary:
            for name, value in given.items():
                if value is not None:
                    yield Fault(name, "is given, and temporary makes its own")
            return
        for name, value in given.items():
            if value is None:
                yield Fault(name, "is missing; give ca, cert and key, or temporary: true")
            elif not Path(value).expanduser().is_file():
                yield Fault(name, f"is {value}, and there is no such file")

    def files(self, folder: Path) -> Files:
        """The paths; temporary certificates are written under `folder`, for us alone.

        Raises:
            BadInput: temporary, and the package that makes certificates is missing.
        """
        if not self.temporary:
            return {
                name: str(Path(str(getattr(self, name))).expanduser())
                for name in ("ca", "cert", "key")
            }
        return _temporary(folder)


def own_files(tls: Tls | None, folder: Path) -> Files:
    """Certificates of a pool on this machine: those it was given, else made for it alone."""
    if tls is not None:
        return tls.files(folder)
    files = _temporary(folder)
    path = Path(files["ca"]).parent / "token"
    write_private(path, secrets.token_hex(32))
    return files | {"token": str(path)}


def forget(files: Files) -> None:
    """Delete certificates that were made for one pool."""
    with suppress(OSError):  # another run may be reading them
        shutil.rmtree(Path(files["ca"]).parent)


def remember(address: str, files: Files) -> Path:
    """Note where a pool's files are, so that `kdlab teacher ADDRESS` finds them here."""
    note = _note(address)
    note.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    note.unlink(missing_ok=True)
    write_private(note, json.dumps(files))
    return note


def remembered(address: str) -> Files | None:
    """The files of a pool that this user has up on this machine."""
    note = _note(address)
    if not note.is_file() or note.stat().st_uid != os.getuid():
        return None
    files = recall_as(Files, note, "The pool is asked for without it.")
    return files if files and all(Path(path).is_file() for path in files.values()) else None


def _note(address: str) -> Path:
    parts = urlsplit(address)
    return home() / "pools" / f"{parts.hostname}-{parts.port}.json"


def address_faults(
    address: str, tls: Tls | None, *, insecure: bool = False
) -> Iterator[Fault]:
    """Faults of the address of a cluster that is up already, on other machines."""
    if tls is None and not insecure and not address.startswith("tls://"):
        yield Fault(
            "address",
            f"is {address}: whoever can connect to a plain TCP address can run code there. "
            "Give a tls:// address and tls: {ca, cert, key}, or say insecure: true where "
            "the network keeps others out",
        )
    if tls is not None and tls.temporary:
        yield Fault("tls", "is temporary, which other machines cannot know; give files")
    if address.startswith("tls://") != (tls is not None):
        yield Fault("tls", "goes with an address tls://..., and only with one")


def _temporary(folder: Path) -> Files:
    try:
        made = Security.temporary()
    except ImportError as error:
        raise BadInput(
            "Certificates are made with the package cryptography, which is missing: pip "
            "install cryptography. Or give your own: tls.ca, tls.cert, tls.key."
        ) from error
    folder.mkdir(parents=True, exist_ok=True)
    private = Path(tempfile.mkdtemp(prefix="tls-", dir=folder))  # mode 0700
    texts = {
        "ca": made.tls_ca_file,
        "cert": made.tls_client_cert,
        "key": made.tls_client_key,
    }
    for name, text in texts.items():
        path = private / f"{name}.pem"
        write_private(path, str(text))
    return {name: str(private / f"{name}.pem") for name in texts}


def write_private(path: Path, text: str) -> None:
    """A new file that this user alone can read."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)


def token() -> bytes | None:
    """What both ends of a label wire of this process must know; None asks for nothing."""
    return _token


def use(files: Files | None) -> None:
    """Make this process speak TLS, and nothing else, on all its Dask connections."""
    global _token  # noqa: PLW0603  # one pool per process
    if files:
        _token = _token_of(files)
        dask.config.set(_settings(files))


@contextmanager
def used(files: Files | None) -> Iterator[None]:
    """`use` within a process that goes on: afterwards it speaks as it did before."""
    global _token  # noqa: PLW0603
    before = _token
    with dask.config.set(_settings(files) if files else {}):
        _token = _token_of(files) if files else before
        try:
            yield
        finally:
            _token = before


def _token_of(files: Files) -> bytes | None:
    return Path(files["token"]).read_bytes() if "token" in files else None


def _settings(files: Files) -> dict[str, object]:
    settings: dict[str, object] = {"distributed.comm.require-encryption": True}
    settings["distributed.comm.tls.ca-file"] = files["ca"]
    for role in _ROLES:
        settings[f"distributed.comm.tls.{role}.cert"] = files["cert"]
        settings[f"distributed.comm.tls.{role}.key"] = files["key"]
    return settings


def of_all_roles(files: Files) -> Security:
    """For one client, or a cluster whose workers show the same; this process stays as it is."""
    kinds = [f"{role}_{kind}" for role in _ROLES for kind in ("cert", "key")]
    shown = {f"tls_{kind}": files[kind.partition("_")[2]] for kind in kinds}
    return Security(tls_ca_file=files["ca"], require_encryption=True, **shown)


def listen_address(host: str, port: int = 0) -> str:
    """Where a server of this process listens; port 0 is any that is free."""
    encrypted = dask.config.get("distributed.comm.require-encryption", False)
    return f"{'tls' if encrypted else 'tcp'}://{host}:{port}"


class NoHttp:
    """Mixed into Dask's servers: no web pages, which anybody could read and some act on."""

    def start_http_server(self, *args: object, **kwargs: object) -> None:
        self.http_application = RoutingApplication([])
        self.http_server = HTTPServer(self.http_application)
        vars(self.http_server)["port"] = 0  # it never listens
