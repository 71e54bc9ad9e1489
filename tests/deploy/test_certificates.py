"""Certificates by role, as Dask uses them, and the probe that shows them."""

import importlib.util
import re
import socket
import ssl
import threading
from itertools import product
from pathlib import Path

import pytest

from kdlab.cluster.transport.security import dask_security

DEPLOY = Path(__file__).parents[2] / "deploy"
SERVES = ("scheduler", "teacher")


def script(name):
    """A program of deploy/, as a module."""
    spec = importlib.util.spec_from_file_location(name, DEPLOY / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def roles(tmp_path_factory):
    """Certificates of each role, as their files."""
    folder = tmp_path_factory.mktemp("tls")
    script("certificates").make(folder)
    return {p.name: files_in(p) for p in folder.iterdir()}


def files_in(folder):
    return {name: str(folder / f"{name}.pem") for name in ("ca", "cert", "key")}


@pytest.fixture
def port():
    """Somebody listens there and, like a process that hangs, does not answer."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


def ask(server, files, wait_s=5.0):
    folder = Path(files["ca"]).parent
    script("answers").ask("127.0.0.1", server.getsockname()[1], folder, wait_s)


def answer(server, files):
    """One connection, as Dask's servers do; in a thread."""

    def once():
        context = dask_security(files).get_listen_args("scheduler")["ssl_context"]
        accepted, _ = server.accept()
        try:
            context.wrap_socket(accepted, server_side=True).close()
        except OSError:
            accepted.close()  # the other side says why

    thread = threading.Thread(target=once, daemon=True)
    thread.start()
    return thread


def test_a_server_that_answers_and_one_that_hangs_are_told_apart(port, roles):
    thread = answer(port, roles["scheduler"])
    ask(port, roles["scheduler"])
    thread.join()
    with pytest.raises(TimeoutError):
        ask(port, roles["scheduler"], wait_s=0.05)


def test_where_nobody_listens_is_seen_too(port, roles):
    address, folder = port.getsockname(), Path(roles["scheduler"]["ca"]).parent
    port.close()
    with pytest.raises(ConnectionRefusedError):
        script("answers").ask("127.0.0.1", *address[1:], folder, 1.0)


def shake(server, client):
    """Shake hands as kdlab has Dask do; raises what the server or the client refuses."""
    server_side = dask_security(server).get_listen_args("scheduler")["ssl_context"]
    client_side = dask_security(client).get_connection_args("client")["ssl_context"]
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        server_side.wrap_bio(up, down, server_side=True),
        client_side.wrap_bio(down, up, server_side=False),
    ]
    for end in (1, 0, 1, 0):
        try:
            ends[end].do_handshake()
        except ssl.SSLWantReadError:
            continue


@pytest.mark.parametrize(
    ("server", "client"), product(SERVES, ("scheduler", "teacher", "run"))
)
def test_whoever_serves_takes_each_role(server, client, roles):
    """Also roles that never connect there: Dask checks the certificate, not the role."""
    shake(roles[server], roles[client])


@pytest.mark.parametrize("client", [*SERVES, "run"])
def test_a_runs_certificate_cannot_be_shown_by_a_server(client, roles):
    with pytest.raises(
        ssl.SSLCertVerificationError, match="unsuitable certificate purpose"
    ):
        shake(roles["run"], roles[client])


def test_another_authority_counts_nothing(tmp_path, roles):
    script("certificates").make(tmp_path)
    with pytest.raises(ssl.SSLCertVerificationError):
        shake(files_in(tmp_path / "scheduler"), roles["run"])


def test_keys_are_for_their_owner_and_are_renewed_under_the_same_authority(tmp_path, roles):
    certificates = script("certificates")
    certificates.make(tmp_path)
    before = {p: p.read_bytes() for p in tmp_path.rglob("*.pem")}
    certificates.make(tmp_path)
    for path, text in before.items():
        assert path.stat().st_mode & 0o777 == 0o600
        unchanged = path.name == "ca.pem" or path.parent.name == "authority"
        assert (path.read_bytes() == text) == unchanged
    shake(files_in(tmp_path / "teacher"), files_in(tmp_path / "run"))


def test_the_docs_make_a_secret_of_each_role():
    text = (DEPLOY.parent / "docs" / "cluster.md").read_text()
    secrets = re.findall(r"create secret generic \S+ --from-file=tls/(\w+)", text)
    assert sorted(secrets) == sorted(script("certificates").ROLES)
