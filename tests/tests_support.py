"""Small things that several test modules need."""

import itertools
import os
import socket
import time
import urllib.request


def trained_ids(batches, epoch):
    """All ids of one epoch, repeats kept."""
    return [int(i) for e, ids in batches if e == epoch for i in ids]


def until(condition, seconds=300.0, every_s=0.02):
    """What a condition comes to; polled, the deadline is generous and no test depends on it."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, "the condition did not come true"
        time.sleep(every_s)  # between looks
    return found


def run_folders(folder):
    """Of all runs started there; beside them lie MLflow's files, a journal among them."""
    return [spec.parent for spec in (folder / "runs").glob("*-*/spec.yaml")]


def answers(url):
    """Whether a server is up."""
    try:
        with urllib.request.urlopen(url, timeout=2) as reply:
            return reply.status == 200
    except OSError:
        return False


# Below the ports that systems give to whoever asks for any, and other ones for each process
# of tests: between looking and listening nobody else takes one.
_PORTS = itertools.count(
    20_000 + 1000 * int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:])
)


def free_port():
    """On loopback; nobody listens there."""
    return next(port for port in _PORTS if not listens(port))


def listens(port):
    """Whether somebody does, on loopback."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
