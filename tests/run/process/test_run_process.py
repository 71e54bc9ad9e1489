"""A run from its folder to its result: stopped, killed, failed and resumed."""

import hashlib
import math
import os
from dataclasses import dataclass
from pathlib import Path

import pytest
from runs_here import Killed, RunsHere, after, killed, losses, steps
from small_disk import SmallDisk
from torch import nn

import kdlab
from kdlab.config import registry
from kdlab.errors import RunFailed, RunStopped
from kdlab.events.log import read_all, select
from kdlab.models.model import ModelSpec
from kdlab.run.handle.run import resume
from kdlab.run.process import run_process
from kdlab.run.process.run_process import RunProcess
from kdlab.run.process.tracker import Tracker

SMALL = {
    "student": {"type": "models/patch_net", "patch": 8, "width": 8},
    "train.epochs": 3,
    "train.log_every_steps": 1,
    "train.checkpoint_every_steps": 5,
    "train.evaluate_every": 3,
}
EPOCH = 8  # steps: 240 images by 32


def started(*overrides, source="none"):
    return kdlab.load(f"smoke/{source}", SMALL, *overrides).start()


def students(run):
    paths = sorted(run.path.glob("members/**/student.safetensors"))
    return [hashlib.sha256(path.read_bytes()).hexdigest() for path in paths]


def limited(runs, patch, writes):
    """Limit the disk to so many writes from the start of a run's work; return the disks."""
    disks = []

    def make(folder, stop):
        disks.append(SmallDisk(patch, writes))
        return RunProcess(folder, stop)

    runs.make = make
    return disks


@pytest.fixture(scope="module")
def quiet_run(kdlab_home, tmp_path_factory):
    """A run that nothing interrupts, to compare with."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("whole"))
        runs = RunsHere(patch)
        patch.setattr("kdlab.run.handle.run.spawn", runs)
        disks = limited(runs, patch, math.inf)
        run = started()
        run.writes = disks[0].taken
    assert run.state == "finished", run.folder.log.read_text()
    return run


def same(run, quiet_run):
    """Assert that a run has ended as one that nothing interrupted."""
    assert run.state == "finished", run.folder.log.read_text()
    assert losses(run.folder) == losses(quiet_run.folder)
    assert list(losses(quiet_run.folder)) == list(range(1, 3 * EPOCH + 1))
    assert students(run) == students(quiet_run) != []
    result = run.result
    assert (result["samples_lost"], result["samples_repeated"]) == (0, 0)
    assert result["samples_seen"] == 3 * 240
    assert result["student_top1"] == quiet_run.result["student_top1"]


@pytest.mark.parametrize("step", [1, EPOCH, 12])
@pytest.mark.long
def test_a_soft_stop_saves_and_a_resume_is_exact(runs, quiet_run, step):
    runs.stop = after(step)
    run = started()
    assert (run.state, run.status.exit_code) == ("stopped", 130)
    assert run.status.error == f"stopped by the user after step {step + 1}"
    with pytest.raises(RunStopped, match=f"kdlab resume {run.id}"):
        _ = run.result
    assert resume(run.id).id == run.id
    same(run, quiet_run)
    assert run.result["samples_rolled_back"] == 0
    assert [e.step for e in steps(run.folder)] == list(range(1, 3 * EPOCH + 1))


@pytest.mark.parametrize(("step", "saved"), [(2, 0), (7, 5), (EPOCH + 5, 10)])
@pytest.mark.long
def test_a_killed_run_goes_on_from_its_checkpoint_and_ends_the_same(
    runs, quiet_run, step, saved
):
    runs.stop = after(step, killed)
    run = started()
    assert run.state == "lost"
    with pytest.raises(RunFailed, match="killed from outside"):
        _ = run.result
    resume(run.id)
    same(run, quiet_run)
    done = [e.step for e in steps(run.folder)]
    assert [n for n in set(done) if done.count(n) == 2] == list(range(saved + 1, step + 1))


@pytest.mark.long
def test_killed_while_it_writes_a_checkpoint_it_goes_on_from_the_one_before(
    runs, quiet_run, monkeypatch
):
    renamed = Path.rename

    def rename(path, target):
        if Path(target).name == "step_000000010":
            os.truncate(path / "state.safetensors", 100)
            raise Killed
        return renamed(path, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", rename)
        run = started()
    assert run.state == "lost"
    assert len(list(run.path.rglob(".step_*"))) == 1
    resume(run.id)
    same(run, quiet_run)
    assert not list(run.path.rglob(".step_*"))
    (resumed,) = select(run.folder.events, "resumed")
    assert resumed.step == 5


@pytest.mark.long
def test_a_stop_between_two_trainings_keeps_the_first(runs):
    runs.stop = lambda folder: any(select(folder.events, "member_done"))
    run = started("compare=[none, in_process]", source="in_process")
    assert run.status.error == "stopped by the user between two trainings"
    runs.stop = lambda folder: False
    resume(run.id)
    begun = [e.member for e in select(run.folder.events, "member_started")]
    assert begun == ["none/seed0", "in_process/seed0"]  # each trained once
    assert [row["source"] for row in run.result["runs"]] == ["none", "in_process"]


def test_a_loss_that_is_no_number_ends_it_with_the_remedy(runs):
    run = started({"train.lr": 1e30})
    assert (run.state, run.status.exit_code) == ("failed", 1)
    with pytest.raises(RunFailed, match=r"lower train\.lr") as caught:
        _ = run.result
    assert str(run.folder.log) in str(caught.value)
    assert "Traceback" in run.folder.log.read_text()


@pytest.mark.parametrize("share", [0.05, 0.2, 0.4, 0.6, 0.8, 0.95])
@pytest.mark.long
def test_wherever_it_is_full_the_run_says_so_and_goes_on_exactly(
    runs, quiet_run, monkeypatch, share
):
    with monkeypatch.context() as patch:
        limited(runs, patch, int(share * quiet_run.writes))
        run = started()
    runs.make = RunProcess
    assert run.state == "failed"
    assert "The disk did not take what was written" in run.status.error
    assert f"kdlab resume {run.id}" in run.status.error
    resume(run.id)
    same(run, quiet_run)


@pytest.mark.long
def test_a_teacher_of_which_all_checkpoints_are_damaged_is_begun_anew_when_told(
    runs, kdlab_home
):
    """Runs share the training of a teacher."""
    settings = {
        "teacher.recipe": {
            "epochs": 3,
            "checkpoint_every_steps": 2,
            "threads": 1,
            "lr": 0.03,
        }
    }

    def saved():
        return set(kdlab_home.glob("teachers/*/checkpoints/step_*"))

    before = saved()
    runs.stop = lambda folder: len(saved() - before) > 1
    run = started(settings, source="in_process")
    assert run.state == "stopped"
    damaged = saved() - before
    for path in damaged:
        (path / "state.safetensors").write_bytes(b"rubbish")
    runs.stop = lambda folder: False
    resume(run.id)
    assert run.state == "failed"
    assert "--anew" in run.status.error
    resume(run.id, anew=True)
    assert run.state == "finished"
    (folder,) = {path.parent for path in damaged}
    aside = {path.name for path in folder.parent.rglob("damaged_*")}
    assert len(aside) == len(damaged)


def test_a_cost_that_cannot_be_measured_does_not_lose_the_training(runs, monkeypatch):
    """Costs are measured with one image; this student takes no batch of one."""
    monkeypatch.setattr(registry, "_registered", dict(registry._registered))

    @kdlab.register("models/picky")
    @dataclass(frozen=True, kw_only=True)
    class Picky(ModelSpec):
        def architecture(self, num_classes, in_chans):
            return PickyLinear(64 * in_chans, num_classes)

    run = kdlab.load("smoke/none", {"student": {"type": "models/picky"}}).start()
    assert run.state == "finished", run.folder.log.read_text()
    assert run.result["costs"] == {}
    *_, warned = select(run.folder.events, "warned")
    assert warned.message == "The costs of the student are unknown: one is not enough"
    assert "N-training" in run.table()


class PickyLinear(nn.Linear):
    def forward(self, views):
        if len(views) == 1:
            raise RuntimeError("one is not enough")
        return super().forward(views.flatten(1))


# What MLflow gets


class Follower:
    """A writer for MLflow that has written everything at once."""

    def __init__(self, calls):
        self.process, self.calls = self, calls

    def wait(self):
        return 0

    def stop(self):
        self.calls.append("stopped")


@pytest.fixture
def tracked(runs, monkeypatch):
    """Record in order: start and stop of the tracker, the drawing, the state at the end."""
    calls = []

    def start(module, followed, log):
        calls.append("follows")
        assert (followed.folder / "events.jsonl").is_file()
        return Follower(calls)

    class Tracked(RunProcess):
        def __init__(self, run, stop):
            super().__init__(run, stop)
            self.tracker = Tracker(self.log.emit, self.late, start)

        def end(self, state, result=None, error=None):
            super().end(state, result, error)
            calls.append(read_all(self.run.events)[-1].state)

    runs.make = Tracked
    monkeypatch.setattr(run_process, "draw_overview", lambda *_: calls.append("drawn"))
    return calls


@pytest.mark.long
def test_mlflow_follows_from_the_first_event_to_the_last(tracked, runs):
    run = started("tracking.enabled=true", "train.epochs=1")
    assert run.state == "finished"
    assert tracked == ["follows", "drawn", "finished", "stopped"]
    assert run.status.tracking is None
    (begun,) = select(run.folder.events, "run_started")
    assert begun.tracking_uri.endswith("mlflow.db")
    assert run.result["tracking_uri"] == begun.tracking_uri


def test_of_a_run_that_is_stopped_nothing_is_drawn(tracked, runs):
    runs.stop = after(1)
    run = started("tracking.enabled=true")
    assert tracked == ["follows", "stopped", "stopped"]
    assert run.state == "stopped"


@pytest.mark.long
def test_without_tracking_nobody_follows(tracked, runs):
    run = started("train.epochs=1")
    assert tracked == ["finished"]
    assert run.result["tracking_uri"] is None
