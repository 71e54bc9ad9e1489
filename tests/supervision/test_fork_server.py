"""A forked child is as one that was started afresh, and its exit is known as that of any other."""

import json
import os
import signal
import subprocess
import sys

import fork_server
import pytest
from fork_server import SERVER, ForkedProcess, forked, preloaded
from tests_support import until

pytestmark = pytest.mark.processes

_TELLS = """
import json, os, random, signal, sys
print(json.dumps({
    "arguments": sys.argv[1:], "folder": os.getcwd(), "mine": os.environ.get("MINE"),
    "session": os.getsid(0), "pid": os.getpid(), "drawn": random.random(),
    "numpy": "numpy" in sys.modules, "descriptors": sorted(os.listdir("/proc/self/fd")),
    "words": open("/proc/self/cmdline").read().replace(chr(0), " ").split(),
    "interrupts": signal.getsignal(signal.SIGINT) is signal.default_int_handler,
}), flush=True)
if "wait" in sys.argv:
    signal.pause()
raise SystemExit(int(sys.argv[1]))
"""


@pytest.fixture
def start(tmp_path, monkeypatch):
    """Starts a child with these arguments: (process, what it prints)."""
    (tmp_path / "tells.py").write_text(_TELLS)
    monkeypatch.chdir(tmp_path)

    def begin(*arguments, more=None, **options):
        out, theirs = os.pipe()
        with open(os.devnull, "rb") as nothing:
            fds = {0: nothing.fileno(), 1: theirs, 2: 2}
            environment = os.environ | (more or {})
            process = forked("tells", arguments, environment, fds, **options)
        os.close(theirs)
        with os.fdopen(out) as file:
            return process, json.loads(file.readline() or "null")

    return begin


@pytest.fixture(scope="module")
def server():
    with preloaded("numpy"):
        yield


def test_a_child_is_as_if_it_had_been_started_afresh(server, start, tmp_path):
    process, info = start("0", more={"MINE": "1"})
    assert process.wait(60) == 0
    assert info["pid"] == process.pid
    assert (info["arguments"], info["folder"], info["mine"]) == (["0"], str(tmp_path), "1")
    assert info["numpy"]  # the server has imported it
    assert info["interrupts"]
    assert info["session"] == os.getsid(0)
    assert info["words"] == [sys.executable, "-m", "tells", "0"]  # for lists of processes
    # Its three, and the one that lists them: nothing of the server or of other children.
    assert len(info["descriptors"]) == 4
    _, second = start("0")
    assert second["drawn"] != info["drawn"]


def test_how_it_ended_is_known(server, start):
    process, _ = start("7")
    assert process.wait(60) == process.poll() == process.returncode == 7
    process, _ = start("0", "wait")
    assert process.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.0)
    process.kill()
    assert process.wait(60) == -signal.SIGKILL
    process.send_signal(signal.SIGTERM)  # too late, and no fault


def test_one_of_a_session_of_its_own_has_a_server_of_its_own(server, start):
    process, info = start("0", "wait", new_session=True)
    assert info["session"] == process.pid
    os.killpg(process.pid, signal.SIGKILL)  # ends that server too
    assert process.wait(60) == -signal.SIGKILL
    until(lambda: not _alive_in(process.pid))


def _alive_in(group):
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def test_where_it_cannot_be_as_asked_it_is_not_forked(server, start):
    assert start("0", more={"PYTHONPATH": "/elsewhere"})[0] is None  # was read at the begin
    # A module that fails to be found ends as `python -m` would.
    process = forked("no_such_module", (), os.environ, {1: 2, 2: 2})
    assert process.wait(60) == 1


def test_without_a_server_nothing_is_forked(start, monkeypatch):
    monkeypatch.setattr(fork_server, "_server", None)
    assert start("0")[0] is None
    with preloaded("no_such_module"):  # it could not even begin
        assert start("0")[0] is None


def test_a_server_with_threads_refuses(tmp_path):
    (tmp_path / "threads.py").write_text(
        "import threading, time\n"
        "threading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", f"{SERVER}(0)", "threads"],
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "cannot be forked" in done.stderr


def test_popen_forks_modules_of_kdlab_and_nothing_else(server, spawned_by):
    """kdlab calls `Popen` as it does for users; only this session has a server in between."""
    assert spawned_by([sys.executable, "-m", "kdlab.supervision", "this"])
    assert not spawned_by([sys.executable, "-m", "this"])
    assert not spawned_by([sys.executable, "-m", "kdlab.supervision", "this"], cwd="/")


@pytest.fixture
def spawned_by():
    """Runs a command with pipes until its end, which is a success: whether it was forked."""

    def start(words, **options):
        process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, **options
        )
        printed = process.stdout.read()
        assert process.wait(60) == 0
        assert b"Beautiful is better" in printed
        return isinstance(process, ForkedProcess)

    return start
