"""The entry of a sweep's process: it hears a stop before it imports what takes seconds."""

import os
import runpy
import signal
import sys

import pytest

from kdlab.config import home
from kdlab.experiment.folder import RunFolder
from kdlab.run.process import stop_request
from kdlab.tuning import child, process


@pytest.fixture
def handlers():
    """Put back, whatever was set."""
    known = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in known.items():
        signal.signal(number, handler)


def test_it_ends_as_its_sweep_does_and_hands_on_that_it_is_to_stop(
    handlers, tmp_path, monkeypatch
):
    seen = []

    def main(path, stop):
        seen.extend((path, stop()))
        os.kill(os.getpid(), signal.SIGTERM)
        seen.append(stop())
        return 130

    monkeypatch.setattr(process, "main", main)
    watched = []
    monkeypatch.setattr(stop_request, "end_with", lambda *given: watched.extend(given))
    monkeypatch.setattr(home, "keep_private", lambda: watched.append("private"))
    folder = RunFolder(tmp_path)
    with folder.held() as lock:
        monkeypatch.setattr(sys, "argv", ["child", str(lock), str(tmp_path)])
        with pytest.raises(SystemExit) as ended:
            runpy.run_path(child.__file__, run_name="__main__")
        assert (tmp_path / "lock").read_text() == str(os.getpid())
        assert not folder.alive()  # all is said: its end may take its time
    home.never_anew.discard(tmp_path)
    assert ended.value.code == 130
    assert watched == ["private", tmp_path, lock]  # it ends with its folder
    assert seen == [str(tmp_path), False, True]
