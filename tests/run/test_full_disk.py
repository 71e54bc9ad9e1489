"""A disk that is full: the run says so, keeps what it had, and goes on with room again."""

import hashlib
import os
import random
import subprocess

import pytest
from optuna.trial import TrialState

import kdlab
from kdlab.errors import ClusterError, RunFailed
from kdlab.events.log import select
from kdlab.run.handle.run import resume
from kdlab.run.process.execution import _RESERVE_BYTES

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(os.getuid() != 0, reason="a small disk is mounted by root alone"),
]
SIZE = 8 << 20


@pytest.fixture
def disk(tmp_path, monkeypatch):
    """A disk of 8 MB, on which the runs are."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "none", str(folder)], check=False
    )
    if mounted.returncode:
        pytest.skip("this sandbox mounts nothing")
    monkeypatch.setenv("KDLAB_RUNS", str(folder / "runs"))
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def free(disk):
    return os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize


def fill(disk, leave):
    """Fill the disk but for so many bytes."""
    (disk / "filler").write_bytes(bytes(max(0, free(disk) - leave)))


def losses(run):
    return {e.step: e.loss for e in select(run.folder.events, "step_logged")}


def students(run):
    paths = sorted(run.path.glob("members/**/student.safetensors"))
    return [hashlib.sha256(path.read_bytes()).hexdigest() for path in paths]


OWN = {"none": {"train.checkpoint_every_steps": 5}, "blockwise": {}}  # by epoch, by itself


def started(source="none"):
    settings = {"train.epochs": 30, "train.log_every_steps": 1, "tracking.enabled": False}
    return kdlab.load(f"smoke/{source}", settings | OWN[source]).start(lambda line: None)


@pytest.mark.parametrize(
    ("source", "seed"),
    [
        ("none", 0),
        *(pytest.param("none", n, marks=pytest.mark.nightly) for n in range(1, 5)),
        *(pytest.param("blockwise", n, marks=pytest.mark.nightly) for n in range(3)),
    ],
)
def test_wherever_it_is_full_the_run_says_so_and_goes_on_exactly(
    kdlab_home, elsewhere, disk, source, seed
):
    before = free(disk)
    quiet = started(source).wait(timeout_s=600)
    assert quiet.state == "finished"
    used = before - free(disk)
    share = random.Random(seed).uniform(0.1, 0.8)
    fill(disk, leave=_RESERVE_BYTES + int(share * used))
    run = started(source)
    run.wait(timeout_s=600)
    assert run.status.state == "failed", run.status
    assert "The disk did not take what was written" in run.status.error
    assert f"kdlab resume {run.id}" in run.status.error
    (disk / "filler").unlink()
    resume(run.id).wait(timeout_s=600)
    assert run.state == "finished", run.status
    assert losses(run) == losses(quiet)
    assert students(run) == students(quiet) != []
    assert run.result["samples_lost"] == run.result["samples_repeated"] == 0


def test_without_any_room_nothing_starts(kdlab_home, elsewhere, disk):
    fill(disk, leave=0)
    with pytest.raises(ClusterError, match="Nothing was started"):
        started()
    assert not list((disk / "runs").glob("*/status.json"))


GRID = {
    "experiment": "smoke/none",
    "space": {
        "train.lr": {"choices": [0.02, 0.1]},
        "train.momentum": {"choices": [0.0, 0.5, 0.9]},
    },
    "sampler": {"name": "grid"},
    "objectives": [{"metric": "validation_top1"}],
    "trials": 6,
    "confirm": None,
    "tracking": {"enabled": False},
}


def swept(study):
    return kdlab.sweep(GRID, study=study, say=lambda line: None)


def values(sweep):
    """Return values by parameters; a trial that met the full disk was tried again."""
    complete = [t for t in sweep.study.trials if t.state == TrialState.COMPLETE]
    by_parameters = {tuple(sorted(t.params.items())): t.values for t in complete}
    assert len(by_parameters) == len(complete)  # each once
    return by_parameters


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(2))
def test_a_sweep_says_so_and_goes_on_exactly(kdlab_home, elsewhere, disk, seed):
    before = free(disk)
    quiet = swept("whole").wait(timeout_s=600)
    share = random.Random(seed).uniform(0.1, 0.7)
    fill(disk, leave=_RESERVE_BYTES + int(share * (before - free(disk))))
    sweep = swept("full")
    with pytest.raises(RunFailed, match="The disk did not take what was written"):
        _ = sweep.wait(timeout_s=600).result
    assert "--study full" in sweep.status.error
    (disk / "filler").unlink()
    again = swept("full").wait(timeout_s=600)
    assert again.state == "finished", again.status
    assert values(again) == values(quiet)
