"""The process that writes to MLflow restarts after failures; then it is given up."""

import json
import os
import signal

import pytest
import tests_support
from mlflow import MlflowClient

import kdlab
from kdlab.events.general import Warned
from kdlab.events.log import select
from kdlab.run.handle.chaos import OtherTargets
from kdlab.run.outputs.tracking_sync import sync_all
from kdlab.run.process.tracker import Tracker


@pytest.fixture
def tracker(tmp_path):
    """A tracker whose lines are recorded."""
    lines = []
    writer = Tracker(lines.append, "too slow")
    writer.lines = lines
    yield writer
    writer.finish()


@pytest.mark.nightly
def test_one_that_fails_again_and_again_is_given_up_with_the_remedy(
    tracker, tmp_path, monkeypatch
):
    monkeypatch.setattr("kdlab.run.process.tracker._AGAIN_S", 0.0)
    (tmp_path / "tracking.json").mkdir()
    tracker.start(tmp_path)
    tests_support.until(lambda: tracker.trouble)
    tracker.finish()
    assert "with exit code 1" in tracker.trouble
    assert "kdlab runs --sync" in tracker.trouble
    assert len(tracker.lines) == 6  # five times it was started again


@pytest.mark.nightly
def test_a_killed_one_goes_on_where_it_was(kdlab_home, elsewhere):
    run = kdlab.load(
        "smoke/none",
        "tracking.enabled=true",
        "train.epochs=2000",
        "train.log_every_steps=1",
        "train.evaluate_every=1000",
    ).start(lambda line: None)
    written = run.path / "tracking.json"
    tests_support.until(written.exists)
    for killed in (1, 2):
        tests_support.until(lambda: any(trackers(run)))
        (process,) = trackers(run)
        os.kill(process.pid, signal.SIGKILL)
        tests_support.until(lambda n=killed: len(restarts(run)) == n)
    tests_support.until(lambda: any(trackers(run)))
    run.stop()
    run.wait(timeout_s=300)
    # A stop waits some seconds for MLflow; on a busy machine the rest is written afterwards.
    if run.status.tracking is not None:
        sync_all()
    state = json.loads(written.read_text())
    client = MlflowClient(state["uri"])
    (mlflow_run,) = set(state["runs"].values())  # of the one training and the whole
    experiment = client.get_run(mlflow_run).info.experiment_id
    assert len(client.search_runs([experiment])) == 1  # none begun twice
    logged = {e.step: e.loss for e in select(run.folder.events, "step_logged")}
    history = client.get_metric_history(mlflow_run, "learning/loss")
    assert {m.step: m.value for m in history} == pytest.approx(logged)
    assert len(history) == len(logged)  # none twice


def trackers(run):
    return [t for t in OtherTargets(run).helpers() if "follow" in t.name]


def restarts(run):
    return [w for w in select(run.folder.events, Warned) if "it restarts" in w.message]
