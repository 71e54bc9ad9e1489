"""`kdlab ui`: which store it shows, who may look, and how it ends; MLflow's server is scripted."""

import json
import os
import signal
import stat
import threading
from contextlib import closing
from http.server import BaseHTTPRequestHandler, HTTPServer
from socket import create_server

import pytest

from kdlab.errors import BadInput, KdlabError, NotFoundError
from kdlab.run import ui
from kdlab.run.ui import serve_ui, token
from kdlab.tracking import UI_HOST, UI_ONCE, UI_TOKEN, ui_address


class Server:
    """A stand-in for MLflow's server: it answers after some looks, and ends with `code`."""

    pid = 4321

    def __init__(self, looks=0, code=0, dies=False):
        self.looks, self.code, self.dies = looks, code, dies
        self.command, self.options, self.handlers = [], {}, {}

    def __call__(self, command, **options):
        self.command, self.options = command, options
        return self

    def answers(self, port):
        self.looks -= 1
        return self.looks < 0

    def poll(self):
        return self.code if self.dies else None

    def wait(self):
        self.handlers = {n: signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)}
        return self.code


@pytest.fixture
def store(elsewhere, monkeypatch):
    """A store beside the runs; nobody listens on any port."""
    monkeypatch.setenv("KDLAB_HOME", str(elsewhere / "home"))
    monkeypatch.setattr(ui, "_listens", lambda port: False)
    monkeypatch.setattr(ui.time, "sleep", lambda seconds: None)
    (elsewhere / "runs").mkdir()
    (elsewhere / "runs" / "mlflow.db").touch()
    return elsewhere / "runs" / "mlflow.db"


@pytest.fixture
def up(store, monkeypatch):
    def serve(server, **options):
        monkeypatch.setattr(ui, "_answers", server.answers)
        return serve_ui(5000, options.pop("uri", None), start=server, **options)

    return serve


def test_the_store_beside_the_runs_is_shown_to_this_user_alone(up, store, capsys):
    server = Server(looks=2)
    assert up(server) == 0
    assert server.command[1:4] == ["-m", "mlflow", "server"]
    words = " ".join(server.command)
    assert "--host 127.0.0.1 --port 5000" in words
    assert "--app-name kdlab --workers 1" in words
    environment = server.options["env"]
    assert environment["MLFLOW_BACKEND_STORE_URI"] == f"sqlite:///{store}"
    assert environment[UI_TOKEN] == token()
    assert environment["MLFLOW_SERVER_ENABLE_JOB_EXECUTION"] == "false"
    assert environment["PATH"] == os.environ["PATH"]
    assert server.options["start_new_session"]
    output = capsys.readouterr().out
    host, once = environment[UI_HOST], environment[UI_ONCE]
    assert f"http://{host}:5000/?token={once}#/experiments?" in output
    assert host.endswith(".localhost")  # of its own: a cookie goes to all ports of a host
    assert token() not in output
    assert "for you alone" in output


def test_a_password_of_a_store_is_not_in_the_command(up, monkeypatch):
    monkeypatch.setenv("KDLAB_OURS", "secret")
    server = Server()
    up(server, uri="postgresql://me:<env:KDLAB_OURS>@host/db")
    assert server.options["env"]["MLFLOW_BACKEND_STORE_URI"] == (
        "postgresql://me:secret@host/db"
    )
    assert not any("secret" in word for word in server.command)


def test_the_way_in_is_another_one_each_time_and_in_no_command(up):
    ways = []
    for _ in range(2):
        server = Server()
        up(server)
        ways += [server.options["env"][name] for name in (UI_ONCE, UI_HOST)]
        assert not any(way in word for way in (*ways, token()) for word in server.command)
    assert len(set(ways)) == 4


def test_what_ran_last_is_opened(up, store, capsys):
    runs = store.parent
    for number, (name, key) in enumerate(
        [("a", "experiment_id"), ("sweeps/s", "experiment"), ("silent", "other")]
    ):
        (runs / name).mkdir(parents=True)
        path = runs / name / "tracking.json"
        path.write_text(json.dumps({key: number + 7}))
        os.utime(path, (number, number))
    up(Server())
    output = capsys.readouterr().out
    assert "#/experiments/8/runs?workflowType=machine_learning " in output  # the sweep's
    facts = {"experiment_id": 7, "view": True}
    (runs / "a" / "tracking.json").write_text(json.dumps(facts))
    up(Server())
    output = capsys.readouterr().out
    assert "/7/runs?workflowType=machine_learning&viewStateShareKey=kdlab " in output
    up(Server(), uri="http://far")
    assert "#/experiments?" in capsys.readouterr().out  # not of this store


def test_a_browser_is_opened_once_it_answers_by_a_page_of_this_user_alone(
    up, monkeypatch, elsewhere
):
    """All users can read the command line of a browser."""
    opened = []
    monkeypatch.setattr(ui.webbrowser, "open", opened.append)
    up(Server(looks=3))
    assert opened == []
    for server in (Server(), Server(looks=3)):  # an earlier page is in nobody's way
        opened.clear()
        up(server, browser=True)
    (page,) = opened
    assert page == (elsewhere / "home" / "ui.html").as_uri()
    text = (elsewhere / "home" / "ui.html").read_text()
    environment = server.options["env"]
    assert f"{environment[UI_HOST]}:5000/?token={environment[UI_ONCE]}#/" in text
    assert token() not in text
    assert stat.S_IMODE((elsewhere / "home" / "ui.html").stat().st_mode) == 0o600


class Talking(Server):
    """A server that writes lines to its stdout and stderr."""

    def __call__(self, command, **options):
        options["stdout"].write(b"INFO: alembic\n" * 20)
        options["stderr"].write(b"Error: the disk is full\n")
        return super().__call__(command, **options)


def test_what_mlflow_says_is_in_a_log_and_the_address_stands_alone(up, capfd, elsewhere):
    up(Talking(looks=2))
    out, err = capfd.readouterr()
    assert out.startswith("MLflow: http://")
    assert len(out.splitlines()) == 1
    assert err == ""
    assert "disk is full" in (elsewhere / "home" / "ui-5000.log").read_text()


@pytest.mark.parametrize("dies", [True, False])  # before it answers, or later
def test_a_server_that_ends_by_itself_is_told_with_its_last_lines(
    up, capfd, elsewhere, dies
):
    with pytest.raises(KdlabError) as caught:
        up(Talking(looks=9 if dies else 0, code=3, dies=dies))
    assert "exit code 3" in str(caught.value)
    assert str(elsewhere / "home" / "ui-5000.log") in str(caught.value)
    assert str(caught.value).endswith("  Error: the disk is full")
    assert ("MLflow: " in capfd.readouterr().out) is not dies


@pytest.mark.parametrize("code", [0, -signal.SIGTERM])
def test_an_end_that_was_asked_for_is_none(up, code):
    assert up(Server(code=code)) == 0


def test_ctrl_c_ends_its_workers_too_and_handlers_are_put_back(up, monkeypatch):
    before = {n: signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)}
    ended = []
    monkeypatch.setattr(ui.os, "killpg", lambda *whom: ended.append(whom))
    server = Server()
    up(server)
    for number, handler in server.handlers.items():
        handler(number, None)
    assert ended == [(server.pid, signal.SIGTERM)] * 2
    assert {n: signal.getsignal(n) for n in before} == before


def test_without_a_store_or_a_free_port_nothing_is_started(elsewhere, store, monkeypatch):
    monkeypatch.undo()
    monkeypatch.chdir(elsewhere)
    with closing(create_server(("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(BadInput, match=f"kdlab ui --port {port + 1}"):
            serve_ui(port, None, start=pytest.fail)
    store.unlink()
    with pytest.raises(NotFoundError, match="There is no MLflow store"):
        serve_ui(5000, None, start=pytest.fail)


def test_the_token_is_one_for_each_user_and_private(store, elsewhere):
    first = token()
    assert token() == first
    assert len(first) > 20
    assert stat.S_IMODE((elsewhere / "home" / "ui.token").stat().st_mode) == 0o600


def test_it_answers_when_its_server_does_and_not_only_its_socket(store):
    asked = []

    class Health(BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append((self.path, self.headers["Authorization"]))
            self.send_response([503, 200, 401][len(asked) - 1])
            self.end_headers()

        def log_message(self, *words):
            pass

    with HTTPServer(("127.0.0.1", 0), Health) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        assert not ui._answers(server.server_port)
        assert not ui._answers(server.server_port)  # ours lets no stranger in
        assert ui._answers(server.server_port)
        server.shutdown()
    assert asked == [("/health", None)] * 3  # who has this port may be somebody else
    assert not ui._answers(server.server_port)  # gone


def test_a_port_where_somebody_speaks_no_http_does_not_answer(store):
    """A Dask scheduler once took the port first: MLflow ends then, and the user reads why."""
    with create_server(("127.0.0.1", 0)) as listener:

        def speak():
            with listener.accept()[0] as caller:
                caller.recv(4096)
                caller.sendall(b"\x00\x01compression\n")

        speaking = threading.Thread(target=speak)
        speaking.start()
        assert not ui._answers(listener.getsockname()[1])
        speaking.join()


def test_links_lead_to_where_it_is_up(up, elsewhere, monkeypatch):
    monkeypatch.setenv("KDLAB_HOME", str(elsewhere / "home"))
    assert ui_address() == "http://127.0.0.1:5000"  # where one comes up by itself
    seen = []
    server = Server()
    server.wait = lambda: seen.append(ui_address()) or 0
    up(server, uri="sqlite:///other.db")
    assert seen[0].endswith(".localhost:5000")
    assert ui_address() == "http://127.0.0.1:5000"  # it has ended
