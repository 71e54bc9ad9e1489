"""Ranks on the workers of a real Dask cluster: two hosts, as far as this machine has any."""

import os
import signal

import psutil
import pytest
from safetensors.torch import load_file
from tests_support import until

import kdlab
from kdlab.events.log import select

pytestmark = pytest.mark.slow("a Dask cluster, and two runs with ranks on its workers")


@pytest.fixture
def cluster(two_workers):
    return two_workers


def started(address, *overrides):
    return kdlab.load(
        "smoke/blockwise",
        "tracking.enabled=false",
        "method.profile_s=0.5",
        f"workers={{address: '{address}', insecure: true}}",
        *overrides,
    ).start(lambda line: None)


def children_of(process):
    return [c for c in psutil.Process(process.pid).children() if is_rank(c)]


def is_rank(process):
    try:
        return "kdlab.methods" in " ".join(process.cmdline())
    except psutil.Error:  # it has ended
        return False


def weights(run):
    return load_file(run.path / "members" / "tr" / "seed0" / "student.safetensors")


def test_ranks_start_on_workers_and_survive_the_loss_of_one(cluster, kdlab_home, elsewhere):
    address, workers = cluster
    quiet = started(address, "train.epochs=20")
    until(lambda: all(children_of(worker) for worker in workers))  # one rank on each
    quiet.wait(timeout_s=600)
    assert quiet.state == "finished", quiet.status
    until(lambda: not any(children_of(worker) for worker in workers))  # none is left behind
    run = started(address, "train.epochs=20")
    until(lambda: list(select(run.folder.events, "checkpoint_saved")))
    os.kill(workers[1].pid, signal.SIGKILL)
    run.wait(timeout_s=600)
    assert run.state == "finished", run.status
    assert list(select(run.folder.events, "rank_lost"))
    expected, actual = weights(quiet), weights(run)
    assert all((expected[k] == actual[k]).all() for k in expected)
    assert run.result["samples_lost"] == run.result["samples_repeated"] == 0


@pytest.mark.nightly
def test_a_killed_run_leaves_no_rank_behind(cluster, kdlab_home, elsewhere):
    """The keeper ends ranks whose run is gone, and no others."""
    address, workers = cluster
    run = started(address, "train.epochs=100000")
    until(lambda: list(select(run.folder.events, "checkpoint_saved")))
    beside = started(address, "train.epochs=1").wait(timeout_s=600)
    assert beside.state == "finished", beside.status
    assert not list(select(run.folder.events, "rank_lost"))
    run.kill()
    until(lambda: not any(children_of(worker) for worker in workers))


@pytest.mark.nightly
def test_ranks_of_a_student_train_on_workers_as_one_process_does(
    cluster, kdlab_home, elsewhere
):
    """All-reduce over two Dask workers, batch norm over all rows; one of them is lost."""
    address, workers = cluster
    common = (
        "train.epochs=6",
        "train.log_every_steps=1",
        "tracking.enabled=false",
        "train.checkpoint_every_steps=20",
    )
    quiet = kdlab.load("smoke/none", *common).start(lambda line: None).wait(timeout_s=600)
    run = kdlab.load(
        "smoke/none",
        *common,
        "aggregation={type: train/aggregation/all_reduce, standby: 0}",
        f"workers={{address: '{address}', insecure: true}}",
    ).start(lambda line: None)
    until(lambda: list(select(run.folder.events, "checkpoint_saved")))
    assert all(children_of(worker) for worker in workers)  # one on each
    os.kill(workers[1].pid, signal.SIGKILL)
    run.wait(timeout_s=600)
    assert run.state == "finished", run.status
    expected, actual = (
        {e.step: e.loss for e in select(r.folder.events, "step_logged")}
        for r in (quiet, run)
    )
    assert expected.keys() == actual.keys()
    assert max(abs(expected[step] - actual[step]) for step in expected) < 5e-3
    assert run.result["samples_lost"] == run.result["samples_repeated"] == 0


@pytest.mark.nightly
def test_local_models_train_on_workers(cluster, kdlab_home, elsewhere):
    """EC-DNN: they read each other's models, and a lost machine leaves the round."""
    address, workers = cluster
    run = kdlab.load(
        "smoke/ensemble",
        "tracking.enabled=false",
        "method.compare={}",
        "method.workers=2",
        "method.wait_for_lost=false",
        "aggregation={type: train/aggregation/ensemble, tau: 8, "
        "compression: {type: train/compression/distillation, p_iterations: 4}}",
        "train.epochs=60",
        f"workers={{address: '{address}', insecure: true}}",
    ).start(lambda line: None)
    until(lambda: all(children_of(worker) for worker in workers))  # one on each
    until(lambda: len(list(select(run.folder.events, "round_closed"))) > 1)
    os.kill(workers[1].pid, signal.SIGKILL)
    run.wait(timeout_s=600)
    assert run.state == "finished", run.status
    assert len(list(select(run.folder.events, "local_model_lost"))) == 1
    sizes = [len(e.models) for e in select(run.folder.events, "round_closed")]
    assert sizes[0] == sizes[-1] == 2
    assert run.result["global_top1"] > 30  # of ten classes


@pytest.mark.nightly
def test_a_hung_local_model_on_a_worker_is_replaced(cluster, kdlab_home, elsewhere):
    """Its heartbeat travels over Dask, and so does the kill; the other worker waits."""
    address, workers = cluster
    common = (
        "tracking.enabled=false",
        "method.compare={}",
        "method.workers=2",
        "aggregation={type: train/aggregation/ensemble, tau: 8, "
        "compression: {type: train/compression/distillation, p_iterations: 4}}",
        "train.epochs=40",
    )
    where = f"workers={{address: '{address}', insecure: true}}"
    quiet = kdlab.load("smoke/ensemble", *common, "method.processes=false")
    quiet = quiet.start(lambda line: None).wait(timeout_s=600)
    run = kdlab.load("smoke/ensemble", *common, "method.hang_s=3", where)
    run = run.start(lambda line: None)
    until(lambda: len(list(select(run.folder.events, "round_closed"))) > 1)
    (hung,) = children_of(workers[1])
    hung.suspend()
    run.wait(timeout_s=600)
    assert run.state == "finished", run.status
    news = [e.KIND for e in select(run.folder.events, "worker_hangs", "local_model_lost")]
    assert news == ["worker_hangs", "local_model_lost"]
    assert not list(select(run.folder.events, "round_incomplete"))
    for key in ("samples_seen", "samples_lost", "global_top1"):
        assert run.result[key] == quiet.result[key]
    assert run.result["samples_lost"] == 0


def test_an_address_where_nobody_is(kdlab_cli, elsewhere):
    code, _, err = kdlab_cli(
        "run", "smoke/blockwise", "workers={address: 'tcp://127.0.0.1:9', insecure: true}"
    )
    assert code == 2
    assert "tcp://127.0.0.1:9" in err
    code, _, err = kdlab_cli(
        "run", "smoke/none", "workers={address: 'tcp://127.0.0.1:9', insecure: true}"
    )
    assert code == 2
    assert "has no ranks" in err
