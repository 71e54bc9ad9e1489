"""A student as a model of MLflow: a folder that MLflow itself can load, within its run."""

import json

import pytest
import yaml
from mlflow import MlflowClient
from mlflow.models import Model

from kdlab.tracking.logged_model import log_student


@pytest.fixture
def logged(runs, tmp_path):
    """A student logged after step 20: (client, run, model, folder of what was logged)."""
    student = tmp_path / "student.safetensors"
    student.write_bytes(b"weights")
    student.with_suffix(".json").write_text('{"classes": ["cat", "dog"]}')
    client = MlflowClient(f"sqlite:///{runs}/mlflow.db")
    artifacts = (runs / "artifacts").as_uri()
    experiment = client.create_experiment("small", artifact_location=artifacts)
    run = client.create_run(experiment).info.run_id
    name = log_student(client, run, experiment, student, 20, "none-seed0")
    model = client.get_logged_model(name)
    return client, run, model, runs / "artifacts" / "models" / name / "artifacts"


@pytest.mark.long
def test_a_model_is_an_output_of_the_run_that_trained_it(logged):
    client, run, model, _ = logged
    assert (model.name, model.source_run_id) == ("none-seed0", run)
    assert (model.model_type, str(model.status)) == ("student", "READY")
    (output,) = client.get_run(run).outputs.model_outputs
    assert (output.model_id, output.step) == (model.model_id, 20)
    assert set(model.tags) == {"kdlab.version"}


@pytest.mark.long
def test_weights_and_what_they_are_lie_beside_each_other(logged):
    folder = logged[3]
    student = folder / "data" / "student"
    assert (student / "student.safetensors").read_bytes() == b"weights"
    assert json.loads((student / "student.json").read_text())["classes"] == ["cat", "dog"]
    assert (folder / "requirements.txt").read_text().startswith("kdlab==")
    environment = yaml.safe_load((folder / "python_env.yaml").read_text())
    assert environment["dependencies"] == ["-r requirements.txt"]


def test_mlflow_reads_how_it_is_loaded_and_what_it_takes(logged):
    """MLflow's own reader checks the signature."""
    model = Model.load(str(logged[3]))
    flavor = model.flavors["python_function"]
    assert flavor["loader_module"] == "kdlab.run.outputs.mlflow_student"
    assert flavor["data"] == "data/student"
    assert model.signature.inputs.input_names() == ["image"]
    assert model.signature.outputs.input_names() == [
        "class",
        "probability",
        "probabilities",
    ]
