"""A run that is deleted is marked so in MLflow, and no other one is."""

import re

from mlflow import MlflowClient

from kdlab.config.home import write_json
from kdlab.experiment.folder import RunFolder
from kdlab.run.handle.run import Run


def test_mlflow_marks_the_runs_of_a_deleted_one_and_no_others(runs, tmp_path, monkeypatch):
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
    said = Run(folder).delete()
    assert re.search(r"; 1 runs in MLflow are marked as deleted \(mlflow gc", said)
    stages = [client.get_run(one).info.lifecycle_stage for one in (mine, other)]
    assert stages == ["deleted", "active"]
