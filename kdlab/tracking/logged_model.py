"""Log a trained student as a model of MLflow: `mlflow.pyfunc.load_model(uri).predict(images)`."""

import json
import platform
import shutil
import tempfile
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import mlflow
import yaml
from mlflow import MlflowClient
from mlflow.entities import LoggedModelOutput

# MLflow imports it by name when the model is loaded.
_LOADER = "kdlab.run.outputs.mlflow_student"
_INPUTS = [{"type": "binary", "name": "image", "required": True}]
_OUTPUTS = [
    {"type": "string", "name": "class", "required": True},
    {"type": "double", "name": "probability", "required": True},
    {
        "type": "array",
        "items": {"type": "double"},
        "name": "probabilities",
        "required": True,
    },
]


def log_student(
    client: MlflowClient, run: str, experiment: str, student: Path, step: int, name: str
) -> str:
    """Log an exported student as an output of its run; return the id of the model.

    Args:
        client: of the store.
        run: id in MLflow of the run that trained it.
        experiment: its id.
        student: its .safetensors file, beside the .json file.
        step: of the training, at which it was exported.
        name: of the model.
    """
    model = client.create_logged_model(
        experiment,
        name,
        run,
        tags={"kdlab.version": version("kdlab")},
        model_type="student",
    )
    with tempfile.TemporaryDirectory() as folder:
        _save(student, Path(folder) / "model")
        client.log_model_artifacts(model.model_id, str(Path(folder) / "model"))
    client.finalize_logged_model(model.model_id, "READY")
    client.log_outputs(run, [LoggedModelOutput(model.model_id, step)])
    return str(model.model_id)


def _save(student: Path, path: Path) -> None:
    """Write the files of MLflow's save_model, which would import pandas (seconds a run)."""
    target = path / "data" / "student"
    target.mkdir(parents=True)
    for file in (student, student.with_suffix(".json")):
        shutil.copyfile(file, target / f"student{file.suffix}")
    requirements = "requirements.txt"
    (path / requirements).write_text(f"kdlab=={version('kdlab')}\n", encoding="utf-8")
    python = platform.python_version()
    environment = {"python": python, "dependencies": [f"-r {requirements}"]}
    (path / "python_env.yaml").write_text(yaml.safe_dump(environment), encoding="utf-8")
    description = {
        "flavors": {
            "python_function": {
                "data": "data/student",
                "env": {"virtualenv": "python_env.yaml"},
                "loader_module": _LOADER,
                "python_version": python,
            }
        },
        "mlflow_version": mlflow.__version__,
        "signature": {"inputs": json.dumps(_INPUTS), "outputs": json.dumps(_OUTPUTS)},
        "utc_time_created": str(datetime.now(UTC).replace(tzinfo=None)),
    }
    (path / "MLmodel").write_text(yaml.safe_dump(description), encoding="utf-8")
