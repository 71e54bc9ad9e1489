"""`kdlab ui`: MLflow's UI with one worker, on loopback, for this user only."""

import html
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
import urllib.request
import webbrowser
from collections.abc import Callable
from http.client import HTTPException
from types import FrameType
from urllib.error import HTTPError

from kdlab.cluster.transport.security import write_private
from kdlab.config import credentials
from kdlab.config.home import home, recall_as, runs_folder
from kdlab.errors import BadInput, KdlabError, NotFoundError
from kdlab.supervision.children import tail
from kdlab.tracking import UI_HOST, UI_ONCE, UI_TOKEN, VIEW, ui_address, ui_note
from kdlab.tracking.in_mlflow import TRACKING, MlflowLocation

# MLflow has two views; this is the one of training.
_TRAINING = "workflowType=machine_learning"


def command(port: int) -> list[str]:
    """Return the server's command: one worker, no job runner (0.4 GB instead of 2.3 GB)."""
    words = f"mlflow server --host 127.0.0.1 --port {port} --app-name kdlab --workers 1"
    return [sys.executable, "-m", *words.split()]


def token() -> str:
    """Return the UI's access token for scripts: one for each user, the same at each start."""
    path = home() / "ui.token"
    if not path.exists():
        write_private(path, secrets.token_urlsafe(24))
    return path.read_text()


def serve_ui(
    port: int,
    uri: str | None,
    *,
    browser: bool = False,
    start: Callable[..., "subprocess.Popen[bytes]"] = subprocess.Popen,
) -> int:
    """Serve the UI until Ctrl-C.

    Args:
        port: on loopback.
        uri: of the store; None is the one beside the runs.
        browser: also open the page, once the server answers.
        start: starts the server's process.

    Raises:
        NotFoundError: there is no store yet.
        BadInput: the port is taken, or a password of `uri` is missing.
        KdlabError: the server ended by itself; quotes the end of its log.
    """
    store = _store(uri)
    if _listens(port):
        raise BadInput(
            f"Port {port} of this machine is taken, perhaps by another `kdlab ui`. Choose "
            f"another: kdlab ui --port {port + 1}"
        )
    host, once = f"{secrets.token_hex(16)}.localhost", secrets.token_urlsafe(24)
    where = f"http://{host}:{port}"
    newest = _newest_experiment() if uri is None else f"?{_TRAINING}"
    env = os.environ | _settings(store, host, once)
    log = home() / f"ui-{port}.log"
    with log.open("wb") as out:
        settings = {"env": env, "stdout": out, "stderr": out}
        process = start(command(port), start_new_session=True, **settings)

    def forward(number: int, frame: FrameType | None) -> None:
        os.killpg(process.pid, signal.SIGTERM)  # its workers too

    before = {n: signal.signal(n, forward) for n in (signal.SIGINT, signal.SIGTERM)}
    try:
        while process.poll() is None and not _answers(port):
            time.sleep(0.1)  # between polls
        if process.poll() is None:
            _note(where, up=True)
            address = f"{where}/?token={once}#/experiments{newest}"
            print(f"MLflow: {address}  (for you alone, once; Ctrl-C ends it)", flush=True)
            if browser:
                _open(address)
        code = process.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        _note(where, up=False)
    if code not in (0, -signal.SIGTERM):
        raise KdlabError(
            f"MLflow's server ended by itself (exit code {code}), so there is no UI. Its last "
            f"lines tell why; the full log is {log}:\n{tail(log)}"
        )
    return 0


def _store(uri: str | None) -> str:
    """Return the given store, or the one beside the runs."""
    file = runs_folder() / "mlflow.db"
    if uri is None and not file.exists():
        raise NotFoundError(
            f"There is no MLflow store at {file} yet. Run something first: kdlab run "
            "quickstart. Or name one with --uri."
        )
    return uri or f"sqlite:///{file}"


def _settings(uri: str, host: str, once: str) -> dict[str, str]:
    """Environment of the server: its store, and its access rules."""
    return {
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        # The host's name is a secret, and MLflow logs these; a tunnel may have another port.
        "MLFLOW_SERVER_ALLOWED_HOSTS": "127.0.0.1:*,localhost:*,*.localhost:*",
        "MLFLOW_SERVER_CORS_ALLOWED_ORIGINS": "http://*.localhost:*",
        UI_TOKEN: token(),
        UI_ONCE: once,
        UI_HOST: host,
        # Not in the command line, which every user of the machine can see.
        "MLFLOW_BACKEND_STORE_URI": credentials.revealed(uri),
    }


def _note(where: str, *, up: bool) -> None:
    """Note the address for links while the server is up; the newest of several wins."""
    if up or ui_address() == where:
        ui_note().unlink(missing_ok=True)
    if up:
        write_private(ui_note(), where)


def _open(address: str) -> None:
    """Open a page that redirects: a browser's command line would show the token to all users."""
    page = home() / "ui.html"
    page.unlink(missing_ok=True)
    write_private(
        page, f'<meta http-equiv="refresh" content="0; url={html.escape(address)}">'
    )
    webbrowser.open(page.absolute().as_uri())


def _newest_experiment() -> str:
    """The part of the address that shows the MLflow experiment of the newest run."""
    folder = runs_folder()
    files = [*folder.glob(f"*/{TRACKING}"), *folder.glob(f"sweeps/*/{TRACKING}")]
    for path in sorted(files, key=lambda path: path.stat().st_mtime, reverse=True):
        facts = recall_as(MlflowLocation, path, "It is passed over.")
        if facts and (experiment := facts.experiment_id or facts.experiment) is not None:
            shown = f"&viewStateShareKey={VIEW}" if facts.view else ""
            return f"/{experiment}/runs?{_TRAINING}{shown}"
    return f"?{_TRAINING}"


def _answers(port: int) -> bool:
    """Return whether our server answers. No token is sent: another program may have the port."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=1.0):
            return False  # ours asks for a token
    except HTTPError as refused:
        return refused.code == 401
    except (OSError, HTTPException):  # it speaks no HTTP
        return False


def _listens(port: int) -> bool:
    with socket.socket() as knocking:
        knocking.settimeout(1.0)
        return knocking.connect_ex(("127.0.0.1", port)) == 0
