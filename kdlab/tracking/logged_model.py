"""A trained student as a model of MLflow: `mlflow.pyfunc.load_model(uri).predict(images)`."""

import shutil
import tempfile
from pathlib import Path
from typing import Any

from mlflow import MlflowClient
from mlflow.entities import LoggedModelOutput

from kdlab import __version__

# MLflow imports it by name where the model is loaded; nothing here does.
_LOADER = "kdlab.run.outputs.mlflow_student"


def log_student(
    client: MlflowClient, run: str, experiment: str, student: Path, step: int, name: str
) -> str:
    """Log an exported student as an output of its run; the id of the model.

    Args:
        client: of the store.
        run: id in MLflow of the run that trained it.
        experiment: its id.
        student: its .safetensors, with the .json beside it.
        step: of the training, after which it is.
        name: of the model.
    """
    model = client.create_logged_model(
        experiment, name, run, tags={"kdlab.version": __version__}, model_type="student"
    )
    with tempfile.TemporaryDirectory() as folder:
        _save(student, Path(folder) / "model")
        client.log_model_artifacts(model.model_id, str(Path(folder) / "model"))
    client.finalize_logged_model(model.model_id, "READY")
    client.log_outputs(run, [LoggedModelOutput(model.model_id, step)])
    return str(model.model_id)


def _save(student: Path, path: Path) -> None:
    import mlflow.pyfunc  # with pandas: a second
    from mlflow.models import ModelSignature
    from mlflow.types import ColSpec, DataType, Schema
    from mlflow.types.schema import Array

    said: list[Any] = [
        ColSpec(DataType.string, "class"),
        ColSpec(DataType.double, "probability"),
        ColSpec(Array(DataType.double), "probabilities"),
    ]
    signature = ModelSignature(Schema([ColSpec(DataType.binary, "image")]), Schema(said))
    with tempfile.TemporaryDirectory() as folder:
        kept = Path(folder) / "student"
        kept.mkdir()
        for file in (student, student.with_suffix(".json")):
            shutil.copyfile(file, kept / f"student{file.suffix}")
        mlflow.pyfunc.save_model(
            path,
            data_path=str(kept),
            loader_module=_LOADER,
            signature=signature,
            pip_requirements=[f"kdlab=={__version__}"],
        )
