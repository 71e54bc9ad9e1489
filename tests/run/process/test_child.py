"""A run's process once its watchdog has forked it."""

import os
import runpy
import signal
import sys

import pytest

import kdlab
from kdlab.config import home
from kdlab.experiment.folder import RunFolder
from kdlab.run.handle.run import create_folder
from kdlab.run.process import child, stop_request
from kdlab.tuning import process


@pytest.fixture
def folder(elsewhere):
    small = {"student": {"type": "models/patch_net", "patch": 8, "width": 8}}
    run, _ = create_folder(kdlab.load("smoke/none", small, "train.epochs=1"), "starting")
    return run


@pytest.mark.long
def test_it_fills_its_folder_and_ends_with_the_code_of_the_status(folder):
    assert child.main(str(folder.path), lambda: False) == 0
    assert folder.raw_status().state == "finished"


def test_a_stop_that_came_while_it_imported_is_a_stop(folder):
    assert child.main(str(folder.path), lambda: True) == 130
    assert folder.raw_status().state == "stopped"


# A sweep's process hears a stop before its slow imports


@pytest.fixture
def handlers():
    """Restore the handlers of signals afterwards."""
    known = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in known.items():
        signal.signal(number, handler)


def test_a_sweeps_ends_as_the_sweep_does_and_hands_on_that_it_is_to_stop(
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
    monkeypatch.setattr(stop_request, "end_with", lambda *args: watched.extend(args))
    monkeypatch.setattr(home, "keep_private", lambda: watched.append("private"))
    folder = RunFolder(tmp_path)
    with folder.held() as lock:
        words = ["child", "kdlab.tuning.process", str(lock), str(tmp_path)]
        monkeypatch.setattr(sys, "argv", words)
        with pytest.raises(SystemExit) as ended:
            runpy.run_path(child.__file__, run_name="__main__")
        assert (tmp_path / "lock").read_text() == str(os.getpid())
        assert not folder.alive()  # released, though the process may take time to end
    home.never_anew.discard(tmp_path)
    assert ended.value.code == 130
    assert watched == ["private", tmp_path, lock]  # it ends if its folder is deleted
    assert seen == [str(tmp_path), False, True]
