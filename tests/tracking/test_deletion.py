"""A run that is marked or deleted is so in MLflow, and no other one is."""

import re

import pytest
from mlflow import MlflowClient

from kdlab.config.home import write_json
from kdlab.experiment.folder import RunFolder
from kdlab.run.handle.run import Run


@pytest.fixture
def made(runs, tmp_path, monkeypatch):
    """A run with one of its own in MLflow and one that is not: handle, client and both ids."""
    monkeypatch.setenv("KDLAB_RUNS", str(runs))
    folder, store = RunFolder(runs / "r1"), f"sqlite:///{runs / 'mlflow.db'}"
    folder.path.mkdir()
    folder.write_status(state="finished", result={})
    client = MlflowClient(store)
    experiment = client.create_experiment(
        "e", artifact_location=str(tmp_path / "artifacts")
    )
    mine, other = (
        client.create_run(experiment, tags={"kdlab.run_id": name}).info.run_id
        for name in ("r1", "r2")
    )
    # A file of somebody else may name runs that are none of its own.
    facts = {"uri": store, "runs": {"": mine, "none/seed0": other}}
    write_json(folder.path / "tracking.json", facts)
    return Run(folder), client, [mine, other]


def test_mlflow_marks_the_runs_of_a_deleted_one_and_no_others(made):
    run, client, both = made
    said = run.delete()
    assert re.search(r"; 1 runs in MLflow are marked as deleted \(mlflow gc", said)
    stages = [client.get_run(one).info.lifecycle_stage for one in both]
    assert stages == ["deleted", "active"]


def test_what_it_is_marked_with_are_tags_of_its_runs_alone(made):
    run, client, both = made
    run.tag("good", "lr:0.1")
    run.note("try again")
    mine, other = (client.get_run(one).data.tags for one in both)
    assert (mine["kdlab.tags"], mine["kdlab.note"]) == ("good lr:0.1", "try again")
    assert set(other) & {"kdlab.tags", "kdlab.note"} == set()


def test_where_mlflow_is_away_it_is_marked_all_the_same(made, caplog):
    run, _, _ = made
    (run.path / "file").touch()  # a folder cannot be made there, whoever asks
    away = {"uri": f"sqlite:///{run.path}/file/x", "runs": {"": "1"}}
    write_json(run.path / "tracking.json", away)
    run.tag("good")
    assert run.marks.tags == ("good",)
    assert "The marks of run r1 did not reach MLflow" in caplog.text
