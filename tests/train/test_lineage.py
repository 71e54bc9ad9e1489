import os
import signal
import subprocess
import sys
from dataclasses import asdict

import numpy as np
import pytest

from kdlab.train.lineage import Lineage, Odometer


def test_counts_what_was_lost_and_repeated():
    lineage = Lineage.start(10, np.array([1, 2, 3, 4]))
    lineage.trained(np.array([1, 2]))
    lineage.trained(np.array([2, 3]))
    lineage.trained(np.array([9]))  # not a training sample at all
    lineage.finish_epoch()
    assert asdict(lineage.totals()) == {
        "seen": 5,
        "lost": 1,
        "repeated": 2,
        "rolled_back": 0,
    }


def test_a_clean_epoch_counts_nothing_and_the_next_starts_afresh():
    lineage = Lineage.start(4, np.arange(4))
    for _ in range(2):
        lineage.trained(np.array([3, 1]))
        lineage.trained(np.array([0, 2]))
        lineage.finish_epoch()
    assert (lineage.lost, lineage.repeated, lineage.seen) == (0, 0, 8)


@pytest.mark.processes
def test_the_odometer_survives_a_sigkill(tmp_path):
    code = (
        "import sys, time; from pathlib import Path; from kdlab.train.lineage import Odometer;"
        f"o = Odometer(Path({str(tmp_path / 'o')!r})); o.value = 1234;"
        "print('set', flush=True); time.sleep(60)"
    )
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert child.stdout.readline() == b"set\n"
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    child.stdout.close()
    assert Odometer(tmp_path / "o").value == 1234


def test_what_was_undone_is_remembered_over_several_resumes(tmp_path):
    odometer = Odometer(tmp_path / "o")
    odometer.value = 100
    assert odometer.roll_back(60) == 40
    odometer.value = 90
    assert Odometer(tmp_path / "o").roll_back(60) == 70
    assert odometer.value == 60
