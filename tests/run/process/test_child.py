"""What a run's process does once its watchdog has forked it."""

import pytest

import kdlab
from kdlab.run.handle.run import made
from kdlab.run.process import child


@pytest.fixture
def folder(elsewhere):
    small = {"student": {"type": "models/patch_net", "patch": 8, "width": 8}}
    found, _ = made(kdlab.load("smoke/none", small, "train.epochs=1"), "starting")
    return found


@pytest.mark.long
def test_it_fills_its_folder_and_ends_with_the_code_of_the_status(folder):
    assert child.main(str(folder.path), lambda: False) == 0
    assert folder.raw_status().state == "finished"


def test_a_stop_that_came_while_it_imported_is_a_stop(folder):
    assert child.main(str(folder.path), lambda: True) == 130
    assert folder.raw_status().state == "stopped"
