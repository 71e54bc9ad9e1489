"""A run's own faults: killed while it saves, its scheduler killed; ranks of torchrun."""

import os
import subprocess
import sys
from functools import partial

import psutil
import pytest
import tests_support

import kdlab
from kdlab.bench import faults
from kdlab.events.log import read_all, select
from kdlab.run.handle.run import resume

until = partial(tests_support.until, every_s=0.0005)  # a checkpoint takes some milliseconds
FAULTS = int(os.environ.get("FAULTS", "40"))  # `make nightly`: 200


def losses(run):
    return {e["step"]: e["loss"] for e in select(run.folder.events, "step")}


def started(*overrides, source="none"):
    return kdlab.load(
        f"smoke/{source}",
        "train.log_every_steps=1",
        "train.evaluate_every=1000",
        "train.checkpoint_every_steps=1",
        "tracking.enabled=false",
        *overrides,
    ).start(lambda line: None)


@pytest.mark.nightly
def test_killed_while_it_writes_a_checkpoint_it_goes_on_from_the_one_before(
    kdlab_home, elsewhere
):
    big = "student={type: models/patch_net, patch: 2, depth: 40, width: 256}"
    whole = started(big, "train.epochs=4").wait(timeout_s=600)
    run = started(big, "train.epochs=4")
    checkpoints = run.path / "members" / "none" / "seed0" / "checkpoints"
    until(lambda: list(checkpoints.glob("step_*")))
    process = psutil.Process(run.folder.raw_status().pid)

    def stopped_in_the_act():
        if not list(checkpoints.glob(".step_*")):
            return False
        process.suspend()
        until(lambda: process.status() == psutil.STATUS_STOPPED)
        if list(checkpoints.glob(".step_*")):
            return True
        process.resume()  # it was through in the meantime
        return False

    until(stopped_in_the_act)
    process.kill()
    run.wait(timeout_s=600)
    assert run.state == "lost"
    assert list(checkpoints.glob(".step_*"))
    resume(run.id).wait(timeout_s=600)
    assert losses(run) == losses(whole)
    assert not list(checkpoints.glob(".step_*"))
    assert run.result["samples_lost"] == run.result["samples_repeated"] == 0


@pytest.mark.nightly
def test_a_teacher_of_which_all_checkpoints_are_damaged_is_begun_anew_when_told(
    kdlab_home, elsewhere
):
    """Its training is no run's own: `resume --anew` did not reach it."""
    long = "teacher.recipe={epochs: 1000, checkpoint_every_steps: 1, threads: 1}"
    run = started(long, source="in_process")
    checkpoints = []

    def saved():
        checkpoints[:] = kdlab_home.glob("teachers/*/checkpoints/step_*")
        return len(checkpoints) > 1

    until(saved)
    run.stop()
    run.wait(timeout_s=300)
    saved()
    for path in checkpoints:
        (path / "state.safetensors").write_bytes(b"rubbish")
    resume(run.id).wait(timeout_s=300)
    assert run.state == "failed"
    assert "--anew" in run.status.error
    again = resume(run.id, anew=True)
    until(lambda: not {*checkpoints} & {*kdlab_home.glob("teachers/*/checkpoints/step_*")})
    until(saved)  # and trains
    again.stop()
    again.wait(timeout_s=300)
    assert len(list(kdlab_home.glob("teachers/*/checkpoints/damaged_*"))) > 0


@pytest.mark.nightly
def test_a_full_disk_is_named_and_with_room_again_the_run_goes_on(kdlab_home, elsewhere):
    whole = started("train.epochs=40").wait(timeout_s=600)
    run = started("train.epochs=40")
    until(lambda: len(list(select(run.folder.events, "step"))) > 5)
    watchdog = psutil.Process(run.folder.raw_status().pid)
    for process in watchdog.children(recursive=True):
        process.rlimit(psutil.RLIMIT_FSIZE, (3000, -1))  # as small as room for a status
    run.wait(timeout_s=600)
    status = run.folder.raw_status()
    assert status.state == "failed"
    assert "The disk did not take what was written" in status.error
    assert f"kdlab resume {run.id}" in status.error
    resume(run.id).wait(timeout_s=600)
    assert losses(run) == losses(whole)
    assert run.result["samples_lost"] == run.result["samples_repeated"] == 0


@pytest.mark.nightly
def test_a_run_whose_scheduler_is_killed_says_so_and_goes_on(kdlab_home, elsewhere):
    run = started("train.epochs=200", "train.checkpoint_every_steps=20", source="served")
    until(lambda: sum(1 for _ in select(run.folder.events, "step")) > 60)
    children = psutil.Process(run.folder.raw_status().pid).children(recursive=True)
    (scheduler,) = [c for c in children if "scheduler_process" in " ".join(c.cmdline())]
    scheduler.kill()
    run.wait(timeout_s=600)
    assert run.state == "finished", run.status
    said = [e["event"] for e in run.events()]
    assert "coordinator_away" in said
    assert run.result["samples_lost"] == run.result["samples_repeated"] == 0
    assert run.result["samples_seen"] == 200 * 240


# torchrun


def torchrun(run_id, *options):
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2"]
    command += [*options, "-m", "kdlab.run.torchrun", run_id]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True)


def prepared(source="none", **more):
    experiment = kdlab.load(
        f"smoke/{source}",
        "aggregation.type=train/aggregation/all_reduce",
        "student={type: models/patch_net, patch: 2}",
        "train.log_every_steps=1",
        "train.evaluate_every=1000",
        "train.checkpoint_every_steps=20",
        "train.threads=1",
        "tracking.enabled=false",
        {f"train.{key}": value for key, value in more.items()},
    )
    return experiment.prepare_for_torchrun()


def ranks_of(process):
    """Those that torchrun started, by rank."""
    found = {}
    for child in psutil.Process(process.pid).children():
        environment = child.environ()
        if "RANK" in environment:
            found[int(environment["RANK"])] = child
    return found


@pytest.mark.slow("torchrun and two ranks, started twice: a Python with torch each")
@pytest.mark.parametrize(
    ("source", "victim"),
    [
        ("none", 0),
        pytest.param("served", 0, marks=pytest.mark.nightly),
        pytest.param("served", 1, marks=pytest.mark.nightly),
    ],
)
def test_torchrun_starts_a_lost_rank_again_and_nothing_is_lost(
    kdlab_home, elsewhere, source, victim
):
    run = prepared(source, epochs=40)
    process = torchrun(run.id, "--max-restarts=2")
    steps = until(lambda: [e["step"] for e in select(run.folder.events, "step")][50:])
    assert steps
    ranks_of(process)[victim].kill()
    _, said = process.communicate(timeout=600)
    assert process.returncode == 0, said
    assert run.state == "finished", run.status
    (result,) = run.result["runs"]
    assert result["samples_lost"] == result["samples_repeated"] == 0
    assert result["samples_seen"] == 40 * 240
    numbers = [e["number"] for e in select(run.folder.events, "generation")]
    assert numbers == [1, 2], said
    assert any(e["event"] == "resumed" for e in read_all(run.folder.events))


@pytest.mark.nightly
def test_torchrun_stops_gracefully_and_goes_on_where_it_was(kdlab_home, elsewhere):
    whole = prepared(epochs=90)
    _, said = torchrun(whole.id).communicate(timeout=600)
    assert whole.state == "finished", said
    run = prepared(epochs=90)
    process = torchrun(run.id, "--max-restarts=2")
    until(lambda: [e["step"] for e in select(run.folder.events, "step")][50:])
    run.stop()
    process.communicate(timeout=600)
    assert process.returncode == 0
    if run.state == "stopped":  # it was not faster than the stop
        process = torchrun(run.id)
        process.communicate(timeout=600)
    assert run.state == "finished", run.status
    assert run.result["samples_rolled_back"] == 0
    one, two = losses(run), losses(whole)
    assert one.keys() == two.keys()
    assert all(abs(one[step] - two[step]) < 1e-5 for step in one)


@pytest.mark.nightly
def test_a_stop_before_the_first_step_ends_all_ranks(kdlab_home, elsewhere):
    run = prepared("served", epochs=400)
    process = torchrun(run.id, "--max-restarts=2")
    until(lambda: any(e["event"] == "pool_starting" for e in run.events()))
    run.stop()
    process.communicate(timeout=600)
    assert process.returncode == 0
    assert run.state == "stopped", run.status


@pytest.mark.processes
def test_without_torchrun_the_module_says_how(elsewhere):
    done = subprocess.run(
        [sys.executable, "-m", "kdlab.run.torchrun", "last"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "torchrun --nproc-per-node 2 -m kdlab.run.torchrun" in done.stderr


def test_torchrun_needs_ranks(kdlab_cli, elsewhere):
    code, _, err = kdlab_cli("run", "smoke/none", "--torchrun")
    assert code == 2
    assert "Set aggregation.type=train/aggregation/all_reduce" in err


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.timeout(2400)
def test_many_faults_in_one_run_lose_and_repeat_nothing(kdlab_home):
    """Kills, stops, cuts, slow phases, leaves and joins; ranks among them."""
    found = faults.chaos(lambda line: None, FAULTS)
    figures = {f["name"].partition("/")[0]: f["value"] for f in found}
    assert figures["chaos_events"] >= FAULTS
    assert figures["samples_lost"] == figures["samples_repeated"] == 0
