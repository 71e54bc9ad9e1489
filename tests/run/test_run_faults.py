"""A run's own faults: killed while it saves, its scheduler killed, disk full, files damaged."""

import os
from functools import partial

import psutil
import pytest
import tests_support

import kdlab
from benchmarks import faults
from kdlab.events.log import select
from kdlab.run.handle.run import resume

until = partial(tests_support.until, every_s=0.0005)  # a checkpoint takes some milliseconds
FAULTS = int(os.environ.get("FAULTS", "40"))  # `make nightly`: 200


def losses(run):
    return {e.step: e.loss for e in select(run.folder.events, "step_logged")}


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
    quiet = started(big, "train.epochs=4").wait(timeout_s=600)
    run = started(big, "train.epochs=4")
    checkpoints = run.path / "members" / "none" / "seed0" / "checkpoints"
    until(lambda: list(checkpoints.glob("step_*")))
    process = run.folder.process()

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
    assert losses(run) == losses(quiet)
    assert not list(checkpoints.glob(".step_*"))
    assert run.result["samples_lost"] == run.result["samples_repeated"] == 0


@pytest.mark.nightly
def test_a_teacher_of_which_all_checkpoints_are_damaged_is_begun_anew_when_told(
    kdlab_home, elsewhere
):
    """A teacher's training belongs to no run: `resume --anew` once did not reach it."""
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
    quiet = started("train.epochs=40").wait(timeout_s=600)
    run = started("train.epochs=40")
    until(lambda: len(list(select(run.folder.events, "step_logged"))) > 5)
    watchdog = run.folder.process()
    for process in watchdog.children(recursive=True):
        process.rlimit(psutil.RLIMIT_FSIZE, (3000, -1))  # as small as room for a status
    run.wait(timeout_s=600)
    status = run.folder.raw_status()
    assert status.state == "failed"
    assert "The disk did not take what was written" in status.error
    assert f"kdlab resume {run.id}" in status.error
    resume(run.id).wait(timeout_s=600)
    assert losses(run) == losses(quiet)
    assert run.result["samples_lost"] == run.result["samples_repeated"] == 0


@pytest.mark.nightly
def test_a_run_whose_scheduler_is_killed_says_so_and_goes_on(kdlab_home, elsewhere):
    run = started("train.epochs=200", "train.checkpoint_every_steps=20", source="served")
    until(lambda: sum(1 for _ in select(run.folder.events, "step_logged")) > 60)
    children = run.folder.family()[1:]
    (scheduler,) = [c for c in children if "scheduler_process" in " ".join(c.cmdline())]
    scheduler.kill()
    run.wait(timeout_s=600)
    assert run.state == "finished", run.status
    kinds = [e.KIND for e in run.events()]
    assert "coordinator_away" in kinds
    assert run.result["samples_lost"] == run.result["samples_repeated"] == 0
    assert run.result["samples_seen"] == 200 * 240


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.timeout(2400)
def test_many_faults_in_one_run_lose_and_repeat_nothing(kdlab_home):
    """Processes, ranks too, are killed, stopped, cut off, slowed, withdrawn and added."""
    entries = faults.chaos(lambda line: None, FAULTS)
    figures = {f["name"].partition("/")[0]: f["value"] for f in entries}
    assert figures["chaos_events"] >= FAULTS
    assert figures["samples_lost"] == figures["samples_repeated"] == 0
