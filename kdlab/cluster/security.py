"""TLS for everything Dask carries: between scheduler, teachers and readers.

Dask's messages are pickles: whoever can connect can run code. So pools listen on
loopback unless told otherwise, and across machines `tls` makes both ends show a
certificate that the same authority signed.
"""

import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dask
from distributed.security import Security

from kdlab.config import Fault
from kdlab.config.spec import Spec
from kdlab.errors import BadInput

Files = dict[str, str]  # ca, cert, key -> path


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


def address_faults(address: str, tls: Tls | None) -> Iterator[Fault]:
    """Of a cluster that is up already, on other machines."""
    if tls is not None and tls.temporary:
        yield Fault("tls", "is temporary, which other machines cannot know; give files")
    if address.startswith("tls://") != (tls is not None):
        yield Fault("tls", "goes with an address tls://..., and only with one")


def _temporary(folder: Path) -> Files:
    try:
        made = Security.temporary()
    except ImportError as error:
        raise BadInput(
            "tls.temporary needs the package cryptography: pip install 'kdlab[tls]'. Or "
            "give certificates of your own: tls.ca, tls.cert, tls.key."
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
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
    return {name: str(private / f"{name}.pem") for name in texts}


def use(files: Files | None) -> None:
    """Make this process speak TLS, and nothing else, on all its Dask connections."""
    if not files:
        return
    settings: dict[str, Any] = {"distributed.comm.require-encryption": True}
    settings["distributed.comm.tls.ca-file"] = files["ca"]
    for role in ("scheduler", "worker", "client"):
        settings[f"distributed.comm.tls.{role}.cert"] = files["cert"]
        settings[f"distributed.comm.tls.{role}.key"] = files["key"]
    dask.config.set(settings)


def client_security(files: Files) -> Security:
    """For one client, without changing what the rest of this process speaks."""
    return Security(
        tls_ca_file=files["ca"],
        tls_client_cert=files["cert"],
        tls_client_key=files["key"],
        require_encryption=True,
    )


def connection_arguments() -> dict[str, Any]:
    """For calls: what `use` set, or nothing."""
    arguments: dict[str, Any] = Security().get_connection_args("client")
    return arguments


def listen_address(host: str) -> str:
    """Where a server of this process listens: any port of the host."""
    encrypted = dask.config.get("distributed.comm.require-encryption", False)
    return f"{'tls' if encrypted else 'tcp'}://{host}:0"
