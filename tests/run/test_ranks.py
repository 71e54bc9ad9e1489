"""Ranks of a student are killed, stopped, removed and added; every sample is counted."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time

import pytest
from runs_here import after
from threaded_ranks import ThreadedRank, runs_with_ranks

import kdlab
from kdlab.events.log import read_all, select
from kdlab.run.handle.run import resume

MEMBER = "none/seed0"


def start(*overrides, source="none", ranks=2, epochs=30, **aggregation):
    keys = [f"aggregation.{k}={json.dumps(v)}" for k, v in aggregation.items()]
    experiment = kdlab.load(
        f"smoke/{source}",
        "aggregation.type=train/aggregation/all_reduce",
        f"aggregation.ranks={ranks}",
        "student={type: models/patch_net, patch: 2}",
        f"train.epochs={epochs}",
        "train.evaluate_every=1000",
        "train.log_every_steps=1",
        "train.checkpoint_every_steps=20",
        "train.threads=1",
        "tracking.enabled=false",
        *keys,
        *overrides,
    )
    return experiment.start(lambda line: None)


def wait_for(run, condition, seconds=300.0):
    deadline = time.monotonic() + seconds
    while True:
        events = read_all(run.folder.events)
        outcome = condition(events)
        if outcome:
            return outcome
        assert run.state in ("starting", "running"), run.status
        assert time.monotonic() < deadline, [e.KIND for e in events][-20:]
        time.sleep(0.02)


def step_reached(step):
    return lambda events: any(e.KIND == "step_logged" and e.step >= step for e in events)


def generation(number):
    def look(events):
        for event in events:
            if event.KIND == "generation_started" and event.number == number:
                return event.ranks
        return None

    return look


def losses(run):
    """The last loss recorded for each step: those of the lineage that survived."""
    return {e.step: e.loss for e in select(run.folder.events, "step_logged")}


def finished(run, timeout_s=600):
    run.wait(timeout_s=timeout_s)
    assert run.state == "finished", run.status
    (result,) = run.result["runs"]
    assert result["samples_lost"] == result["samples_repeated"] == 0
    return result


def same(first, second, tolerance=1e-5):
    assert first.keys() == second.keys()
    assert all(abs(first[step] - second[step]) <= tolerance for step in first)


@pytest.fixture(scope="module")
def undisturbed(kdlab_home, tmp_path_factory):
    """Losses of two ranks without faults, and of one process."""
    folder = tmp_path_factory.mktemp("undisturbed")
    with contextlib.chdir(folder), runs_with_ranks():
        group = start()
        result = finished(group)
        assert result["samples_rolled_back"] == 0
        single = start("aggregation={type: train/aggregation/none}")
        finished(single)
    return losses(group), losses(single)


@pytest.mark.processes("one group and one process of 240 steps, within this process")
def test_two_ranks_train_as_one_process_does(undisturbed):
    """keep_global_batch: the same batches, cut over ranks, averaged by samples."""
    group, single = undisturbed
    assert len(group) > 200
    same(group, single, tolerance=2e-3)


WITH_NORMS = "student={use: students/digits_tiny}"  # a residual network with batch norm


@pytest.fixture(scope="module")
def alone_with_norms(kdlab_home, tmp_path_factory):
    with contextlib.chdir(tmp_path_factory.mktemp("norms")), runs_with_ranks():
        run = start("aggregation={type: train/aggregation/none}", WITH_NORMS, epochs=4)
        finished(run)
    return losses(run)


@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.nightly)])
def test_batch_norm_is_that_of_the_whole_batch(
    wherever, kdlab_home, elsewhere, alone_with_norms, ranks
):
    """The defect B12: with each rank's own norms the training depends on their number."""
    run = start(WITH_NORMS, epochs=4, ranks=ranks, standby=0)
    finished(run)
    same(losses(run), alone_with_norms, tolerance=5e-3)


def test_each_ranks_own_batch_norm_is_another_training(
    wherever, kdlab_home, elsewhere, alone_with_norms
):
    local = start(WITH_NORMS, epochs=4, standby=0, batch_norm="local")
    finished(local)
    differ = [
        abs(local_loss - alone_with_norms[step])
        for step, local_loss in losses(local).items()
    ]
    assert max(differ) > 0.02


@pytest.mark.processes("whole runs, within this process")
@pytest.mark.parametrize("victim", [0, 1])
def test_a_rank_that_is_gone_is_replaced_and_the_losses_go_on(
    inline_runs, kdlab_home, elsewhere, undisturbed, victim
):
    inline_runs.once(victim, 50, ThreadedRank.kill)
    run = start()
    result = finished(run)
    same(losses(run), undisturbed[0])
    (again,) = select(run.folder.events, "group_recovered")
    assert again.seconds > 0
    assert 0 < result["samples_rolled_back"] <= 60 * 32


@pytest.mark.processes("whole runs, within this process")
def test_one_that_is_left_trains_on_with_its_own_rate(inline_runs, kdlab_home, elsewhere):
    inline_runs.once(0, 50, ThreadedRank.kill)
    run = start(on_size_change="scale_lr", replace_lost=False, standby=0)
    ranks = [len(e.ranks) for e in select(run.folder.events, "generation_started")]
    assert ranks == [2, 1]
    result = finished(run)
    steps = {e.step: e for e in select(run.folder.events, "step_logged")}
    assert result["samples_seen"] == run.result["samples_seen"]
    assert len(steps) > 240  # smaller batches: more steps


@pytest.mark.processes("whole runs, within this process")
def test_stopped_it_is_saved_and_goes_on(inline_runs, kdlab_home, elsewhere, undisturbed):
    inline_runs.stop_when(after(45))
    run = start()
    assert run.state == "stopped", run.status
    assert finished(resume(run.id))["samples_rolled_back"] == 0
    same(losses(run), undisturbed[0])


@pytest.mark.processes("whole runs, within this process")
@pytest.mark.parametrize("error", [OSError(5, "disk"), RuntimeError("CUDA error: an")])
def test_a_rank_whose_machine_fails_is_lost_with_its_reason(
    inline_runs, kdlab_home, elsewhere, undisturbed, error
):
    """The defect B6: any such error ended the run, for all ranks."""

    def fail(child):
        raise error

    inline_runs.once(1, 60, fail)
    run = start()
    finished(run)
    (lost,) = (e for e in select(run.folder.events, "rank_lost") if e.was_rank)
    assert lost.why.startswith(type(error).__name__)
    assert lost.exit_code == 70
    same(losses(run), undisturbed[0])


@pytest.mark.slow("two ranks and a run, each a Python with torch")
@pytest.mark.parametrize("victim", [pytest.param(0, marks=pytest.mark.nightly), 1])
def test_a_killed_rank_is_replaced_and_the_losses_go_on_as_if_nothing_was(
    kdlab_home, elsewhere, undisturbed, victim
):
    run = start()
    wait_for(run, step_reached(50))
    ranks = wait_for(run, generation(1))
    os.kill(list(ranks.values())[victim], signal.SIGKILL)
    result = finished(run)
    same(losses(run), undisturbed[0])
    (again,) = select(run.folder.events, "group_recovered")
    assert again.seconds > 0
    assert 0 <= result["samples_rolled_back"] <= 60 * 32


@pytest.mark.slow("five ranks come and go")
def test_ranks_come_and_go_gracefully_without_a_step_undone(
    kdlab_home, elsewhere, undisturbed
):
    run = start()
    wait_for(run, step_reached(30))
    run.scale(3)
    ranks = wait_for(run, generation(2))
    assert len(ranks) == 3
    wait_for(run, step_reached(60))
    os.kill(list(ranks.values())[2], signal.SIGTERM)
    assert len(wait_for(run, generation(3))) == 3  # replaced
    run.scale(2)
    assert len(wait_for(run, generation(4))) == 2
    assert finished(run)["samples_rolled_back"] == 0
    same(losses(run), undisturbed[0], tolerance=2e-3)


@pytest.mark.nightly
def test_a_hung_rank_is_found_and_replaced(kdlab_home, elsewhere, undisturbed):
    run = start(hang_s=5.0)
    wait_for(run, step_reached(40))
    name, hung = list(wait_for(run, generation(1)).items())[1]
    os.kill(hung, signal.SIGSTOP)
    finished(run)
    same(losses(run), undisturbed[0])
    assert [e.rank for e in select(run.folder.events, "rank_hangs")] == [name]


@pytest.mark.nightly
def test_fewer_ranks_with_scaled_rate_lose_no_sample(kdlab_home, elsewhere):
    run = start(on_size_change="scale_lr", replace_lost=False, standby=0)
    wait_for(run, step_reached(50))
    ranks = wait_for(run, generation(1))
    os.kill(next(iter(ranks.values())), signal.SIGKILL)
    assert len(wait_for(run, generation(2))) == 1
    result = finished(run)
    steps = {e.step: e for e in select(run.folder.events, "step_logged")}
    assert result["samples_seen"] == run.result["samples_seen"]
    assert len(steps) > 240  # smaller batches: more steps


def test_measured_shares_are_kept_and_unequal_cuts_change_nothing(
    wherever, kdlab_home, elsewhere, undisturbed
):
    run = start(shares="measured")
    finished(run)
    same(losses(run), undisturbed[0], tolerance=2e-3)
    newest = sorted((run.path / "members" / MEMBER / "checkpoints").glob("step_*"))[-1]
    shares = json.loads((newest / "state.json").read_text())["shares"]
    assert len(shares) == 2
    assert min(shares.values()) > 1  # samples/s, by the name of the rank
    (shared,) = select(run.folder.events, "batch_shared")
    assert shared.shares == "measured"
    assert sum(shared.rows) == 32  # of smoke's batch
    assert min(shared.rows) >= 1


def test_an_error_of_a_rank_ends_the_run_with_its_reason(wherever, kdlab_home, elsewhere):
    run = start("train.lr=1e30", "train.clip_grad_norm=null")
    run.wait(timeout_s=600)
    assert run.state == "failed"
    assert "The loss is" in run.status.error


@pytest.mark.nightly
def test_a_stop_saves_and_a_resume_goes_on(kdlab_home, elsewhere, undisturbed):
    run = start()
    wait_for(run, step_reached(45))
    run.stop()
    run.wait(timeout_s=600)
    assert run.state == "stopped", run.status
    assert finished(resume(run.id))["samples_rolled_back"] == 0
    same(losses(run), undisturbed[0])


@pytest.mark.nightly
def test_served_ranks_with_teachers_and_ranks_killed(kdlab_home, elsewhere):
    run = start(source="served", epochs=60)
    wait_for(run, step_reached(30))
    ready = next(iter(select(run.folder.events, "pool_ready")))
    teachers = [t["pid"] for t in ready.teachers if "pid" in t]  # the others load
    os.kill(teachers[0], signal.SIGKILL)
    wait_for(run, step_reached(60))
    os.kill(list(wait_for(run, generation(1)).values())[1], signal.SIGKILL)
    finished(run)


FAILS_ONCE = '''
from dataclasses import dataclass
from pathlib import Path
import kdlab
import torch.distributed as dist
from torch import nn
from kdlab.models.model import ModelSpec

def first(marker):
    try:
        marker.touch(exist_ok=False)  # both ranks come here in the same step
    except FileExistsError:
        return False
    return True

@kdlab.register("models/fails_once")
@dataclass(frozen=True, kw_only=True)
class FailsOnce(ModelSpec):
    """Fails as a broken disk or GPU does, in one process and one time."""

    marker: str = ""
    kind: str = "os"

    def architecture(self, num_classes, in_chans):
        marker, kind = Path(self.marker), self.kind

        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.layer = nn.Linear(64 * in_chans, num_classes)
                self.calls = 0

            def forward(self, views):
                self.calls += dist.is_initialized()  # who stands by warms up alone
                if self.training and self.calls > 60 and first(marker):
                    if kind == "os":
                        raise OSError(5, "Input/output error")
                    raise RuntimeError("CUDA error: an illegal memory access")
                return self.layer(views.flatten(1))

        return Net()

run = kdlab.load(
    "smoke/none",
    {
        "student": {"type": "models/fails_once", "marker": MARKER, "kind": FAULT},
        "aggregation": {"type": "train/aggregation/all_reduce"},
        "train.epochs": 20,
        "train.checkpoint_every_steps": 20,
        "tracking.enabled": False,
    },
).start(lambda line: None).wait()
lost = [e.why for e in run.events() if e.KIND == "rank_lost" and e.was_rank]
lost = [why for why in lost if "Error: " in why]  # the other one may be killed, if it hangs
result = run.result
print(run.state, lost[0].split(":")[0], len(lost), result["samples_lost"],
    result["samples_repeated"])
'''


@pytest.mark.nightly
@pytest.mark.parametrize("kind", ["os", "cuda"])
def test_a_rank_whose_machine_fails_it_is_a_lost_rank(kdlab_home, elsewhere, kind):
    """The defect B6: any such error ended the run, for all ranks."""
    script = FAILS_ONCE.replace("MARKER", repr(str(elsewhere / "failed")))
    (elsewhere / "nb.py").write_text(script.replace("FAULT", repr(kind)))
    done = subprocess.run(
        [sys.executable, "nb.py"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    error = {"os": "OSError", "cuda": "RuntimeError"}[kind]
    assert done.stdout.strip() == f"finished {error} 1 0 0"
