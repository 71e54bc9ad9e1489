"""Credentials of a pool: certificates for Dask's connections, a token for the label wire.

Dask's messages are pickles: any process that can connect can run code, and on a shared machine
every user can connect to loopback. So a local pool makes certificates for each run, and a
token that both ends of a label wire prove to know; other users of the machine can read
neither file. On loopback the labels themselves are not encrypted: nobody else can listen
there, and encrypting pixels would cost what the wire saves. Across machines `tls` makes both
ends of each connection show a certificate that the same authority signed.
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

import dask
from distributed.http.routing import RoutingApplication
from distributed.security import Security
from tornado.httpserver import HTTPServer

from kdlab.config import Fault
from kdlab.config.credentials import host_port
from kdlab.config.home import home, recall_as
from kdlab.config.spec import Spec
from kdlab.errors import BadInput

Files = dict[str, str]  # ca, cert, key, and token of a local pool -> path

_ROLES = ("scheduler", "worker", "client")
_token: bytes | None = None  # of this process, set by `enable_tls`


@dataclass(frozen=True, kw_only=True)
class Tls(Spec):
    """Certificates, as PEM files that exist on each machine.

    temporary: make a certificate for this run, for all its processes on this machine.
    ca, cert, key: the authority, and the certificate and key that both ends show.
    """

    temporary: bool = False
    ca: str | None = None
    cert: str | None = None
    key: str | None = None

    def cross_faults(self) -> Iterator[Fault]:
        paths = {name: getattr(self, name) for name in ("ca", "cert", "key")}
        if self.temporary:
            for name, value in paths.items():
                if value is not None:
                    yield Fault(name, "is given, but temporary: true makes its own")
            return
        for name, value in paths.items():
            if value is None:
                yield Fault(name, "is missing; give ca, cert and key, or temporary: true")
            elif not os.path.isfile(os.path.expanduser(value)):
                yield Fault(name, f"is {value}; there is no such file")

    def files(self, folder: Path) -> Files:
        """Paths of the files; temporary ones are written under `folder`, for this user alone.

        Raises:
            BadInput: temporary, but the package that makes certificates is missing.
        """
        if not self.temporary:
            return {
                name: os.path.expanduser(str(getattr(self, name)))
                for name in ("ca", "cert", "key")
            }
        return _temporary(folder)


def pool_credentials(tls: Tls | None, folder: Path) -> Files:
    """Files of a pool on this machine: those of `tls`, else made for it alone with a token."""
    if tls is not None:
        return tls.files(folder)
    files = _temporary(folder)
    path = Path(files["ca"]).parent / "token"
    write_private(path, secrets.token_hex(32))
    return files | {"token": str(path)}


def delete_credentials(files: Files) -> None:
    """Delete the certificates that were made for one pool."""
    with suppress(OSError):  # another run may be reading them
        shutil.rmtree(Path(files["ca"]).parent)


def save_credentials(address: str, files: Files) -> Path:
    """Record where a pool's files are, so that `kdlab teacher ADDRESS` finds them."""
    note = _note(address)
    note.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    note.unlink(missing_ok=True)
    write_private(note, json.dumps(files))
    return note


def load_credentials(address: str) -> Files | None:
    """Files of a pool that this user runs on this machine; None where there is none."""
    note = _note(address)
    if not note.is_file() or note.stat().st_uid != os.getuid():
        return None
    files = recall_as(Files, note, "The pool is contacted without it.")
    return files if files and all(Path(path).is_file() for path in files.values()) else None


def _note(address: str) -> Path:
    host, port = host_port(address)
    return home() / "pools" / f"{host}-{port}.json"


def address_faults(
    address: str, tls: Tls | None, *, insecure: bool = False
) -> Iterator[Fault]:
    """Faults of the address of a running cluster on other machines."""
    try:
        host_port(address)
    except BadInput as error:
        yield Fault("address", str(error))
    if tls is None and not insecure and not address.startswith("tls://"):
        yield Fault(
            "address",
            f"is {address}: anyone who can connect to a plain TCP address can run code there. "
            "Give a tls:// address and tls: {ca, cert, key}, or set insecure: true where "
            "the network keeps others out",
        )
    if tls is not None and tls.temporary:
        yield Fault("tls", "is temporary, which other machines cannot read; give files")
    if address.startswith("tls://") != (tls is not None):
        yield Fault("tls", "needs an address tls://..., and such an address needs tls")


def _temporary(folder: Path) -> Files:
    try:
        security = Security.temporary()
    except ImportError as error:
        raise BadInput(
            "Making certificates needs the package cryptography, which is missing: pip "
            "install cryptography. Or give your own: tls.ca, tls.cert, tls.key."
        ) from error
    folder.mkdir(parents=True, exist_ok=True)
    private = Path(tempfile.mkdtemp(prefix="tls-", dir=folder))  # mode 0700
    texts = {
        "ca": security.tls_ca_file,
        "cert": security.tls_client_cert,
        "key": security.tls_client_key,
    }
    for name, text in texts.items():
        path = private / f"{name}.pem"
        write_private(path, str(text))
    return {name: str(private / f"{name}.pem") for name in texts}


def write_private(path: Path, text: str) -> None:
    """Write a new file that only this user can read."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)


def token() -> bytes | None:
    """The secret of label wires in this process; None needs no proof."""
    return _token


def enable_tls(files: Files | None) -> None:
    """Make this process use TLS, and nothing else, on all its Dask connections."""
    global _token  # noqa: PLW0603  # one pool per process
    if files:
        _token = _token_of(files)
        dask.config.set(_settings(files))


@contextmanager
def tls_settings(files: Files | None) -> Iterator[None]:
    """`enable_tls` within a block; the settings before it return afterwards."""
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


def dask_security(files: Files) -> Security:
    """Dask's security with one certificate for all roles; settings of this process stay."""
    kinds = [f"{role}_{kind}" for role in _ROLES for kind in ("cert", "key")]
    shown = {f"tls_{kind}": files[kind.partition("_")[2]] for kind in kinds}
    return Security(tls_ca_file=files["ca"], require_encryption=True, **shown)


def listen_address(host: str, port: int = 0) -> str:
    """Address at which a server of this process listens; port 0 takes any free port."""
    encrypted = dask.config.get("distributed.comm.require-encryption", False)
    return f"{'tls' if encrypted else 'tcp'}://{host}:{port}"


class NoHttp:
    """Mixin for Dask's servers without web pages, which anybody could read, and use to act."""

    def start_http_server(self, *args: object, **kwargs: object) -> None:
        self.http_application = RoutingApplication([])
        self.http_server = HTTPServer(self.http_application)
        vars(self.http_server)["port"] = 0  # it never listens
