"""Marks and the deletion of a run reach its own runs in MLflow, and no others."""

import re

import pytest
from mlflow import MlflowClient

from kdlab.config.home import write_json
from kdlab.experiment.folder import RunFolder
from kdlab.run.handle.run import Run


@pytest.fixture
def recorded(runs, tmp_path, monkeypatch):
    """A run, a client, and ids in MLflow: the run's own, and one of another run."""
    monkeypatch.setenv("KDLAB_RUNS", str(runs))
    folder, store = RunFolder(runs / "r1"), f"sqlite:///{runs / 'mlflow.db'}"
    folder.path.mkdir()
    folder.write_status(state="finished", result={})
    client = MlflowClient(store)
    experiment = client.create_experiment(
        "e", artifact_location=str(tmp_path / "artifacts")
    )
    mine, foreign = (
        client.create_run(experiment, tags={"kdlab.run_id": name}).info.run_id
        for name in ("r1", "r2")
    )
    # A file from elsewhere may also name runs that are another run's.
    facts = {"uri": store, "runs": {"": mine, "none/seed0": foreign}}
    write_json(folder.path / "tracking.json", facts)
    return Run(folder), client, [mine, foreign]


def test_mlflow_marks_the_runs_of_a_deleted_one_and_no_others(recorded):
    run, client, both = recorded
    message = run.delete()
    assert re.search(r"; 1 runs in MLflow are marked as deleted \(mlflow gc", message)
    stages = [client.get_run(run_id).info.lifecycle_stage for run_id in both]
    assert stages == ["deleted", "active"]


def test_what_it_is_marked_with_are_tags_of_its_runs_alone(recorded):
    run, client, both = recorded
    run.tag("good", "lr:0.1")
    run.note("try again")
    mine, foreign = (client.get_run(run_id).data.tags for run_id in both)
    assert (mine["kdlab.tags"], mine["kdlab.note"]) == ("good lr:0.1", "try again")
    assert set(foreign) & {"kdlab.tags", "kdlab.note"} == set()


def test_where_mlflow_is_away_it_is_marked_all_the_same(recorded, caplog):
    run, _, _ = recorded
    (run.path / "file").touch()  # so no folder can be made there, even by root
    away = {"uri": f"sqlite:///{run.path}/file/x", "runs": {"": "1"}}
    write_json(run.path / "tracking.json", away)
    run.tag("good")
    assert run.marks.tags == ("good",)
    assert "The marks of run r1 did not reach MLflow" in caplog.text
