"""Ports as a stranger finds them: servers of each kind in threads of this process."""

import contextlib
import os
import socket
import ssl
import threading
from types import SimpleNamespace

import psutil
import pytest

from kdlab.cluster.transport.security import Tls
from kdlab.config.home import home as cache_folder
from kdlab.run import port_audit
from kdlab.run.port_audit import OpenPort, guard, listening, program_of, readable


class Wire:
    """One end of a connection: it may greet, and answers what it is sent, or waits."""

    def __init__(self, greeting=b"", answer=None):
        self.greeting, self.answer, self.sent = greeting, answer, b""

    def __enter__(self):
        return self

    def __exit__(self, *error):
        return None

    def settimeout(self, seconds):
        assert seconds > 0

    def sendall(self, words):
        self.sent += words

    def recv(self, size):
        if self.greeting:
            return self.greeting
        if not self.sent or self.answer is None:
            raise TimeoutError
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.fixture
def met(monkeypatch):
    """Return what `guard` finds at a server that behaves so, and the addresses it tried."""

    def guarded(wire, host="127.0.0.1", tls=False):
        reached = []

        def connected(address, patience_s):
            reached.append(address)
            if wire is None:
                raise ConnectionRefusedError
            return wire

        monkeypatch.setattr(socket, "create_connection", connected)
        monkeypatch.setattr(port_audit, "_speaks_tls", lambda host, port: tls)
        how = guard(host, 4000)
        return how, {address for address, _ in reached}

    return guarded


@pytest.mark.parametrize(
    ("status", "how"),
    [(b"200 OK", ""), (b"404 Not Found", ""),
     (b"401 Unauthorized", "asks for a token"), (b"403 Forbidden", "asks for a token")],
)  # fmt: skip
def test_a_page_is_open_unless_it_refuses_strangers(met, status, how):
    wire = Wire(answer=b"HTTP/1.1 " + status + b"\r\n\r\n")
    assert met(wire)[0] == how
    assert wire.sent.startswith(b"GET / HTTP/1.0\r\n")


@pytest.mark.parametrize(
    ("host", "knocked"),
    [("0.0.0.0", "127.0.0.1"), ("::", "::1"), ("10.0.0.3", "10.0.0.3")],
)
def test_it_is_knocked_at_where_it_can_be_reached(met, host, knocked):
    assert met(Wire(), host)[1] == {knocked}


def test_who_greets_whoever_connects_is_open(met):
    """Dask greets whoever connects, and then does what it is told."""
    wire = Wire(greeting=b"\x10hello")
    assert met(wire)[0] == ""
    assert wire.sent == b""


@pytest.mark.parametrize("answer", [None, b"", ConnectionResetError()], ids=str)
def test_who_waits_or_hangs_up_is_guarded_by_tls_or_says_nothing(met, answer):
    assert met(Wire(answer=answer))[0] == "answers nothing to strangers"
    assert met(Wire(answer=answer), tls=True)[0] == "asks for a certificate"


def test_nobody_there_takes_no_connection(met):
    assert met(None)[0] == "takes no connection"


@pytest.fixture
def serve(monkeypatch):
    """Start a real server in a thread, which behaves so; return its port."""
    monkeypatch.setattr(port_audit, "_PATIENCE_S", 60.0)  # it answers as soon as it can
    listener = socket.create_server(("127.0.0.1", 0))

    def start(behave):
        def answer():
            wire, _ = listener.accept()
            with wire, contextlib.suppress(OSError):
                behave(wire)

        threading.Thread(target=answer, daemon=True).start()
        return listener.getsockname()[1]

    yield start
    listener.close()


def test_a_server_speaks_tls_or_it_does_not(serve, tmp_path):
    files = Tls(temporary=True).files(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files["cert"], files["key"])
    context.load_verify_locations(files["ca"])
    context.verify_mode = ssl.CERT_REQUIRED

    def secure(wire):
        with context.wrap_socket(wire, server_side=True) as encrypted:
            encrypted.recv(1)

    assert port_audit._speaks_tls("127.0.0.1", serve(secure))
    assert not port_audit._speaks_tls(
        "127.0.0.1", serve(lambda wire: wire.sendall(b"plain " * 9))
    )
    assert not port_audit._speaks_tls("127.0.0.1", serve(lambda wire: None))  # it hangs up


def process(words, ports=(), uid=None, gone=False):
    def connections(kind):
        assert kind == "tcp"
        if gone:
            raise psutil.NoSuchProcess(7)
        return [
            SimpleNamespace(status=state, laddr=SimpleNamespace(ip="127.0.0.1", port=port))
            for state, port in ports
        ]

    uids = SimpleNamespace(real=os.getuid() if uid is None else uid)
    return SimpleNamespace(
        pid=7, info={"cmdline": words, "uids": uids}, net_connections=connections
    )


def test_ports_of_ones_own_kdlab_processes_are_listed(monkeypatch):
    listens, talks = psutil.CONN_LISTEN, psutil.CONN_ESTABLISHED
    mine = ["python", "-m", "kdlab.supervision", "kdlab.cluster.reader"]
    there = [
        process(mine, [(listens, 4000), (talks, 4001)]),
        process(["python", "-m", "http.server"], [(listens, 4002)]),
        process(mine, [(listens, 4003)], uid=os.getuid() + 1),
        process(mine, gone=True),
        process(None, [(listens, 4004)]),
    ]
    monkeypatch.setattr(psutil, "process_iter", lambda asked: iter(there))
    monkeypatch.setattr(port_audit, "guard", lambda host, port: f"{host} {port}")
    assert list(listening()) == [
        OpenPort(7, "kdlab.cluster.reader", "127.0.0.1", 4000, "127.0.0.1 4000")
    ]


@pytest.mark.parametrize(
    ("words", "program"),
    [
        (["python", "-m", "kdlab.supervision", "kdlab.run.child"], "kdlab.run.child"),
        (["/usr/bin/python", "-m", "kdlab", "ui"], "kdlab"),
        (["/home/kdlab.d/bin/dask", "worker"], "dask"),
        ([], ""),
    ],
)
def test_a_process_is_called_by_the_module_it_runs(words, program):
    assert program_of(words) == program


@pytest.mark.parametrize(
    ("host", "who"),
    [("127.0.0.1", "users of this machine"), ("::1", "users of this machine"),
     ("0.0.0.0", "users of the network"), ("10.0.0.3", "users of the network")],
)  # fmt: skip
def test_loopback_is_for_users_of_this_machine(host, who):
    assert OpenPort(1, "kdlab", host, 80, "").within_reach_of == who


def test_what_others_may_look_into_is_named(elsewhere, monkeypatch):
    """MLflow's store, artifacts, images and teachers were once readable by all users."""
    monkeypatch.setenv("KDLAB_HOME", str(elsewhere / "home"))
    home = cache_folder()
    assert readable() == []
    assert home.stat().st_mode & 0o777 == 0o700  # it is made so
    for name, mode in (("open", 0o755), ("listed", 0o710), ("mine", 0o700)):
        (elsewhere / "runs" / name).mkdir(parents=True)
        (elsewhere / "runs" / name).chmod(mode)
        (home / name).mkdir()
    (elsewhere / "runs").chmod(0o755)
    (elsewhere / "runs" / "mlflow.db").touch()
    (elsewhere / "runs" / "mlflow.db").chmod(0o644)
    for name in ("open", "listed", "mine"):
        (home / name).chmod(0o755)
    open_ones = [elsewhere / "runs" / name for name in ("listed", "mlflow.db", "open")]
    assert readable() == open_ones
    home.chmod(0o755)
    assert readable() == [*(home / name for name in ("listed", "mine", "open")), *open_ones]
    for root in (home, elsewhere / "runs"):
        root.chmod(0o700)
    assert readable() == []  # nobody gets as far
