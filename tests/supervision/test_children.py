import json
import os
import signal
import subprocess
import sys
import textwrap

import psutil
import pytest

from kdlab.errors import ClusterError
from kdlab.supervision.children import Child


@pytest.fixture
def module(tmp_path, monkeypatch):
    """A module that children can run."""

    def write(body):
        (tmp_path / "a_child.py").write_text(textwrap.dedent(body))
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
        return "a_child"

    return write


ECHO = """
    from kdlab.supervision.children import announce, configured
    import threading
    announce(got=configured(dict))
    threading.Event().wait()
"""


@pytest.mark.processes
def test_is_configured_answers_and_goes_with_its_lifeline(module, tmp_path):
    child = Child(module(ECHO), {"n": 1}, tmp_path / "log")
    assert child.answer(30) == {"got": {"n": 1}}
    assert child.alive()
    child.stop()
    assert not child.alive()
    child.stop()


@pytest.mark.processes
def test_an_early_death_quotes_the_log(module, tmp_path):
    child = Child(module("raise SystemExit('the reason')"), {}, tmp_path / "log")
    with pytest.raises(ClusterError, match="the reason"):
        child.answer(30)
    child.stop()


@pytest.mark.processes
def test_no_child_outlives_a_parent_that_was_killed(module, tmp_path):
    name = module(ECHO)
    code = f"""
from pathlib import Path
from kdlab.supervision.children import Child
child = Child({name!r}, {{}}, Path({str(tmp_path / "log")!r}))
child.answer(30)
print(child.pid, flush=True)
import threading; threading.Event().wait()
"""
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    pid = json.loads(parent.stdout.readline())
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    try:
        psutil.Process(pid).wait(20)
    except psutil.NoSuchProcess:
        return
