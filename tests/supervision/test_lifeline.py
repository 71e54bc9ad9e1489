"""A child ends with its parent from its first instruction on: also while it imports."""

import os
import subprocess
import sys

import psutil
import pytest
from tests_support import until

pytestmark = pytest.mark.processes

# What torch does for seconds: a module that has not come to `configured` yet.
SLOW = "import time\nopen({up!r}, 'w').close()\ntime.sleep(600)\n"
PARENT = """
import subprocess, sys, time
child = subprocess.Popen(
    [sys.executable, "-m", "kdlab.supervision", "slow_to_import"], stdin=subprocess.PIPE
)
child.stdin.write(b'{"its": "configuration"}\\n')
child.stdin.flush()
print(child.pid, flush=True)
time.sleep(600)
"""


@pytest.fixture
def importing(tmp_path, monkeypatch):
    """(parent, pid of a child that is still importing)."""
    (tmp_path / "slow_to_import.py").write_text(SLOW.format(up=str(tmp_path / "up")))
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT],
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": path},
    )
    try:
        pid = int(parent.stdout.readline())
        until((tmp_path / "up").exists)
        yield parent, pid
    finally:
        parent.kill()
        parent.wait()
        if psutil.pid_exists(pid):
            psutil.Process(pid).kill()


def test_a_killed_parent_leaves_no_child_that_is_still_importing(importing):
    parent, pid = importing
    assert psutil.pid_exists(pid)
    parent.kill()
    parent.wait()
    assert until(lambda: not psutil.pid_exists(pid) or _is_zombie(pid), seconds=60)


def _is_zombie(pid):
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
