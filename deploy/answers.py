"""Whether the server of this container answers, for Kubernetes' probes.

    python -I answers.py PORT

A connection is accepted by the kernel, also for a process that hangs. A TLS handshake is made by
the server's event loop, and nobody answers while that stands still. It sends no message, and
needs the standard library only: importing Dask would take a second of processor time each time.
"""

import socket
import ssl
import sys
from pathlib import Path


def ask(host: str, port: int, folder: Path, wait_s: float) -> None:
    """Make a handshake with the certificates in `folder`.

    Raises:
        OSError: nobody answers within `wait_s`, or somebody whom the authority does not know.
    """
    context = ssl.create_default_context(cafile=folder / "ca.pem")
    context.check_hostname = False  # as Dask: the authority alone counts
    context.load_cert_chain(folder / "cert.pem", folder / "key.pem")
    connection = socket.create_connection((host, port), wait_s)
    with connection, context.wrap_socket(connection):
        pass


if __name__ == "__main__":
    # Teachers listen at the address of their pod, not at localhost.
    ask(socket.gethostname(), int(sys.argv[1]), Path("/tls"), wait_s=5.0)
