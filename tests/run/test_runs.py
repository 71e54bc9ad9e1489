"""Whole runs, started as a user starts them: in new processes, or within this one."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import torch
from runs_here import RunsHere
from safetensors.torch import load_file
from tests_support import event, until

import kdlab
from kdlab.config.home import write_json
from kdlab.errors import BadInput, RunFailed, RunStopped
from kdlab.events.general import Note
from kdlab.events.log import EventLog, read_all
from kdlab.experiment.folder import RunFolder
from kdlab.experiment.spec import spec_of
from kdlab.run.handle.run import Run, create_folder, resume, start

KEYS = {
    "run_id", "experiment", "method", "dataset", "student_top1", "student_top5",
    "teacher_top1", "samples_per_second", "epochs", "samples_seen", "samples_lost",
    "samples_repeated", "samples_rolled_back", "wall_seconds", "tracking_uri", "run_dir",
    "status", "runs", "costs",
}  # fmt: skip
LONG = {"train.epochs": 60, "train.log_every_steps": 1, "train.checkpoint_every_steps": 5}
QUIET = {"tracking.enabled": False}


@pytest.fixture
def inline_runs(elsewhere, monkeypatch):
    """Runs go on in this process: the test looks only at what they leave."""
    monkeypatch.setattr("kdlab.run.handle.run.spawn", RunsHere(monkeypatch))


@pytest.mark.long
def test_run_json_has_the_keys_and_counts(run_json, inline_runs):
    result = run_json("smoke/in_process", "tracking.enabled=false")
    assert set(result) >= KEYS
    assert result["samples_seen"] == 480
    assert (result["samples_lost"], result["samples_repeated"]) == (0, 0)
    assert result["epochs"] == 2
    assert result["status"] == "finished"
    assert result["teacher_top1"] is not None
    assert set(result["costs"]) == {"teacher", "student"}
    for cost in result["costs"].values():
        assert min(cost.values()) > 0
    card = next(Path(result["run_dir"]).rglob("model_card.md")).read_text()
    parameters = result["costs"]["teacher"]["parameters"]
    assert f"| teacher | {parameters:,} |" in card


@pytest.mark.processes("no process, but six trainings")
def test_comparison_over_seeds(run_json, inline_runs):
    """With compare the top-level keys describe the served run, here the last named."""
    result = run_json(
        "smoke/cached",
        "compare=[none, in_process, cached]",
        "seeds=[0, 1]",
        "tracking.enabled=false",
    )
    assert [(r["source"], r["seed"]) for r in result["runs"]] == [
        (source, seed) for seed in (0, 1) for source in ("none", "in_process", "cached")
    ]
    assert result["source"] == "cached"
    cached_top1 = [r["student_top1"] for r in result["runs"] if r["source"] == "cached"]
    assert result["student_top1"] == pytest.approx(sum(cached_top1) / 2)
    assert result["student_top1_std"] is not None


def wait_for(run, event, count=1, seconds=300):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        events = read_all(run.folder.events)
        if sum(event == e.KIND for e in events) >= count:
            return events
        assert run.state in ("starting", "running"), run.folder.log.read_text()
        time.sleep(0.02)
    raise AssertionError(f"no {event} within {seconds} s")


def losses(run):
    """Loss by step, of the last time each step was done."""
    return {e.step: e.loss for e in read_all(run.folder.events) if e.KIND == "step_logged"}


@pytest.mark.processes
def test_the_run_outlives_its_watcher_and_can_be_attached(elsewhere):
    run = kdlab.load("smoke/none", QUIET).start()
    assert os.getsid(until(run.folder.process).pid) != os.getsid(0)
    again = kdlab.attach(run.id[-4:])
    again.wait(timeout_s=600)
    assert again.result["samples_seen"] == 480
    assert run.state == "finished"
    assert kdlab.attach().id == run.id
    assert "finished" in again._repr_html_()


@pytest.mark.processes
def test_a_soft_stop_saves_and_a_resume_is_exact(elsewhere):
    quiet = kdlab.load("smoke/none", QUIET, LONG, {"train.epochs": 6}).start().wait()
    run = kdlab.load("smoke/none", QUIET, LONG, {"train.epochs": 6}).start()
    wait_for(run, "step_logged", 12)
    run.stop()
    run.wait(timeout_s=600)
    if run.state == "stopped":  # it was not faster than the stop
        assert run.status.exit_code == 130
        with pytest.raises(RunStopped, match=f"kdlab resume {run.id}"):
            _ = run.result
        run.resume().wait(timeout_s=600)
    assert run.state == "finished"
    assert losses(run) == losses(quiet)
    assert run.result["student_top1"] == quiet.result["student_top1"]
    assert run.result["samples_rolled_back"] == 0


def test_what_an_earlier_session_did_is_not_shown_again(tmp_path):
    folder = RunFolder(tmp_path)
    folder.write_status(state="finished", result={})
    log = EventLog(folder.events)
    log.emit(Note(message="before"))
    since = time.time()
    log.emit(Note(message="after"))
    seen = []
    Run(folder).wait(seen.append, since=since)
    assert [event.message for event in seen] == ["after"]
    Run(folder).wait(seen.append)  # attaching shows all of it
    assert [event.message for event in seen[1:]] == ["before", "after"]


def test_waiting_in_a_notebook_shows_lines_unless_it_is_live(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("kdlab.run.handle.job_handle.in_a_notebook", lambda: True)
    folder = RunFolder(tmp_path)
    folder.write_status(state="finished", result={})
    EventLog(folder.events).emit(Note(message="something happened"))
    run = Run(folder).wait()
    assert "something happened" in "".join(capsys.readouterr())
    run._shown = [object()]  # as `live` sets it
    run.wait()
    assert "something happened" not in "".join(capsys.readouterr())
    monkeypatch.setattr("kdlab.run.handle.job_handle.in_a_notebook", lambda: False)
    Run(folder).wait()  # a script that writes to a file
    assert "something happened" not in "".join(capsys.readouterr())


def test_the_last_run_is_that_of_this_notebook(tmp_path, monkeypatch):
    monkeypatch.setenv("KDLAB_RUNS", str(tmp_path))
    monkeypatch.setattr("kdlab.run.handle.run.spawn", lambda *_: None)
    experiment = kdlab.load("smoke/none", QUIET)
    mine = start(experiment)
    newer, _ = create_folder(experiment, "running", tmp_path / "99991231-235959-ffff")
    assert kdlab.attach().id == mine.id
    assert kdlab.attach(newer.run_id).id == newer.run_id
    monkeypatch.setattr("kdlab.run.handle.run._started_here", [])  # another notebook
    assert kdlab.attach().id == newer.run_id


def test_runs_show_themselves_as_a_table(tmp_path, monkeypatch):
    monkeypatch.setenv("KDLAB_RUNS", str(tmp_path))
    assert "kdlab run quickstart" in repr(kdlab.runs())  # how to get one
    folder = RunFolder(tmp_path / "20251101-101010-abcd")
    folder.path.mkdir()
    write_json(folder.path / "experiment.json", {"experiment": "<b>mine"})
    folder.write_status(state="finished", result={"student_top1": 91.5})
    (run,) = listed = kdlab.runs()
    for limit in (0, -1):
        with pytest.raises(BadInput, match=f"limit is {limit}, must be >= 1"):
            kdlab.runs(limit)
    assert run.id in repr(listed)
    assert "91.50" in repr(listed)
    shown = listed._repr_html_()
    assert "91.50" in shown
    assert "<b>mine" not in shown


def test_a_folder_of_another_format_is_refused_with_the_reason(tmp_path, monkeypatch):
    monkeypatch.setenv("KDLAB_RUNS", str(tmp_path))
    folder = RunFolder(tmp_path / "20251101-101010-abcd")
    folder.path.mkdir()
    write_json(folder.path / "experiment.json", {"experiment": "mine"})  # as 0.1 wrote it
    folder.write_status(state="stopped")
    EventLog(folder.events).emit(event("run_started", versions={"torch": "2.11"}))
    with pytest.raises(BadInput, match=r"format 1, written by kdlab 0\.1.* run mine again"):
        resume("last")
    with pytest.raises(BadInput, match="format 1"):
        spec_of(folder)
    assert kdlab.attach("last").state == "stopped"  # what it came to can be seen


@pytest.mark.nightly
def test_a_sigkill_is_noticed_and_a_resume_is_exact(elsewhere):
    options = LONG | {"train.epochs": 6}
    quiet = kdlab.load("smoke/none", QUIET, options).start().wait()
    run = kdlab.load("smoke/none", QUIET, options).start()
    wait_for(run, "checkpoint_saved", 2)
    os.kill(run.folder.process().pid, signal.SIGKILL)
    run.wait(timeout_s=600)
    assert run.state == "lost"
    with pytest.raises(RunFailed, match="killed from outside"):
        _ = run.result
    resume(run.id).wait(timeout_s=600)
    assert losses(run) == losses(quiet)
    result = run.result
    assert (result["samples_lost"], result["samples_repeated"]) == (0, 0)
    assert result["samples_seen"] == 6 * 240
    assert result["student_top1"] == quiet.result["student_top1"]


def test_a_failed_run_says_why_and_where(inline_runs):
    run = kdlab.load("smoke/none", QUIET, {"train.lr": 1e30}).start().wait(timeout_s=600)
    assert run.status.exit_code == 1
    with pytest.raises(RunFailed, match=r"lower train\.lr") as caught:
        _ = run.result
    assert str(run.folder.log) in str(caught.value)


@pytest.mark.nightly
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_stops_gracefully_with_exit_130(elsewhere, number):
    command = [sys.executable, "-m", "kdlab", "run", "smoke/none"]
    options = ["tracking.enabled=false", "train.epochs=5000"]
    terminal = subprocess.Popen(
        [*command, *options], stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    folder = None
    while folder is None:  # the run exists once its events do
        assert terminal.poll() is None
        logs = list(elsewhere.glob("runs/*/events.jsonl"))
        folder = logs[0].parent if logs and b'"step"' in logs[0].read_bytes() else None
        time.sleep(0.05)
    maps = Path(f"/proc/{terminal.pid}/maps")
    assert (
        "libtorch" not in maps.read_text()
    )  # it prints lines; the run has its own process
    os.kill(terminal.pid, number)
    _, err = terminal.communicate(timeout=600)
    assert terminal.returncode == 130
    assert "work under way is saved" in err
    assert "kdlab resume" in err
    assert json.loads((folder / "status.json").read_text())["state"] == "stopped"
    assert list(folder.glob("members/none/seed0/checkpoints/step_*"))


@pytest.mark.nightly
def test_ctrl_c_twice_while_checking_is_no_traceback(elsewhere):
    with socket.create_server(("127.0.0.1", 0)) as silent:  # takes calls, and never answers
        address = f"tcp://127.0.0.1:{silent.getsockname()[1]}"
        pool = f"teacher_pool={{type: cluster/remote_pool, address: {address}, insecure: true}}"
        terminal = subprocess.Popen(
            [sys.executable, "-m", "kdlab", "run", "smoke/served", pool],
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert "checking" in terminal.stderr.readline()
        os.kill(terminal.pid, signal.SIGINT)
        os.kill(terminal.pid, signal.SIGINT)
        _, err = terminal.communicate(timeout=600)
    assert terminal.returncode == 130
    assert "before anything was started" in err
    assert "Traceback" not in err
    assert not list(elsewhere.glob("runs/*/status.json"))


def catches(pid, number):
    """Return whether a process has a handler for this signal."""
    status = Path(f"/proc/{pid}/status").read_text()
    mask = next(line for line in status.splitlines() if line.startswith("SigCgt"))
    return bool(int(mask.split()[1], 16) >> (number - 1) & 1)


@pytest.mark.processes
def test_a_stop_in_the_first_moment_is_a_stop(elsewhere):
    """While the process still imports torch."""
    run = kdlab.load("smoke/none", QUIET, {"train.epochs": 5000}).start()
    process = until(run.folder.process)
    # Its handler stands: Python itself catches no SIGTERM. Torch may be there from the fork on.
    while not catches(process.pid, signal.SIGTERM):
        time.sleep(0.01)
    run.stop()
    run.wait(timeout_s=600)
    assert (run.state, run.status.exit_code) == ("stopped", 130)


@pytest.mark.processes
def test_a_second_ctrl_c_ends_everything_at_once(elsewhere):
    run = kdlab.load("smoke/served", QUIET, {"train.epochs": 5000}).start()
    wait_for(run, "step_logged", 3)
    family = run.folder.family()[1:]
    assert len(family) >= 4  # scheduler, two teachers, reader
    run.kill()
    run.wait(timeout_s=600)
    _, alive = psutil.wait_procs(family, timeout=120)
    assert alive == []
    assert run.state == "stopped"


@pytest.mark.processes("no process, but a network of timm and one of torchvision")
@pytest.mark.parametrize(
    ("model", "make"),
    [("timm/resnet10t", "timm"), ("torchvision/mobilenet_v3_small", "torchvision")],
)
def test_the_student_loads_without_kdlab(
    run_json, kdlab_cli, inline_runs, elsewhere, model, make
):
    result = run_json(
        "smoke/none", f"student={model}", "data={use: data/digits, size: 32, channels: 3}",
        "data.train_samples=64", "tracking.enabled=false", "train.epochs=1",
    )  # fmt: skip
    code, out, _ = kdlab_cli("export", result["run_id"], "--out", "s.safetensors")
    assert code == 0
    shown = "\n".join(line[4:] for line in out.split("Load it:\n")[1].splitlines())
    exec(shown, {})  # what is printed runs as it is
    if make == "timm":
        import timm

        plain = timm.create_model("resnet10t", num_classes=10, in_chans=3)
    else:
        import torchvision

        plain = torchvision.models.get_model("mobilenet_v3_small", num_classes=10)
    plain.load_state_dict(load_file("s.safetensors"))
    card = json.loads((elsewhere / "s.json").read_text())
    data = kdlab.load(
        "smoke/none", "data={use: data/digits, size: 32, channels: 3}"
    ).spec.data.load()
    mean, std = (torch.tensor(card[k]).view(1, -1, 1, 1) for k in ("mean", "std"))
    plain.eval()
    with torch.inference_mode():
        inputs = torch.from_numpy(data.inputs[data.test]).float() / 255
        right = plain((inputs - mean) / std).argmax(1) == torch.from_numpy(
            data.labels[data.test]
        )
    assert 100 * right.float().mean().item() == pytest.approx(
        result["student_top1"], abs=0.7
    )


@pytest.mark.parametrize("to", ["safetensors", "torch"])
@pytest.mark.long
def test_a_kdlab_student_loads_with_the_printed_lines(run_json, kdlab_cli, inline_runs, to):
    result = run_json("smoke/none", "tracking.enabled=false", "train.epochs=1")
    _, out, _ = kdlab_cli("export", result["run_id"], "--to", to, "--out", f"sub/s.{to}")
    shown = "\n".join(line[4:] for line in out.split("Load it:\n")[1].splitlines())
    names = {}
    exec(shown, names)
    assert out.startswith("none/seed0\n")
    assert names["model"](torch.zeros(2, 1, 8, 8)).shape == (2, 10)


@pytest.mark.long
def test_attach_ends_with_the_table(kdlab_cli, run_json, inline_runs):
    result = run_json("smoke/none", "tracking.enabled=false", "train.epochs=1")
    code, out, err = kdlab_cli("attach", result["run_id"])
    assert code == 0
    assert "N-training" in out
    assert f"kdlab export {result['run_id']}" in err
    assert kdlab_cli("resume", result["run_id"])[0] == 2
    assert kdlab_cli("runs", "--compare", result["run_id"])[0] == 2


@pytest.mark.nightly
def test_a_notebook_component_trains_in_the_runs_process(elsewhere):
    """A loss defined in a cell (here a script) is used by the run and its teachers."""
    (elsewhere / "nb.py").write_text(
        '''
from dataclasses import dataclass
import kdlab
from kdlab.losses.soft_loss import LossSpec, same_shape

@kdlab.register("losses/mine")
@dataclass(frozen=True, kw_only=True)
class Mine(LossSpec):
    """Squared distance."""
    scale: float = 1.0
    def soft(self, student, teacher, labels):
        same_shape(student, teacher)
        return self.scale * ((student - teacher.detach()) ** 2).mean()

run = kdlab.load("smoke/in_process", {"loss": {"type": "losses/mine", "scale": 0.1},
                 "tracking.enabled": False}).start()
run.wait()
print(run.id, run.result["samples_seen"])
'''
    )
    done = subprocess.run(
        [sys.executable, "nb.py"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    run_id, seen = done.stdout.split()
    assert seen == "480"
    with pytest.raises(kdlab.KdlabError, match="nothing to resume"):
        resume(run_id)
