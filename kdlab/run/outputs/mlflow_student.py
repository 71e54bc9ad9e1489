"""A student as MLflow loads it: encoded images in, classes and probabilities out."""

import base64
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kdlab.run.outputs.prediction import StudentAtWork

if TYPE_CHECKING:
    import pandas as pd


class PyfuncStudent:
    """The model that `mlflow.pyfunc.load_model` returns and `mlflow models serve` calls."""

    def __init__(self, path: Path) -> None:
        self._student = StudentAtWork(path)

    def predict(self, images: Any, params: object = None) -> "pd.DataFrame":
        """Return a row for each image: class, probability, and probabilities of all classes.

        Args:
            images: a table whose first column has encoded images (bytes, or base64 in a request),
                or a list of those.
            params: required by MLflow; unused.

        Raises:
            BadInput, DataError: there is no image, or one cannot be decoded; it is named.
        """
        import pandas as pd

        raw = images.iloc[:, 0] if hasattr(images, "iloc") else images
        classes = self._student.classes
        predictions = self._student([_decoded(image) for image in raw], top=len(classes))
        rows = []
        for prediction in predictions:
            shares = dict(zip(prediction.classes, prediction.probabilities, strict=True))
            rows.append(
                {
                    "class": prediction.top,
                    "probability": prediction.probabilities[0],
                    "probabilities": [shares[name] for name in classes],
                }
            )
        return pd.DataFrame(rows)


def _decoded(raw: object) -> object:
    """Decode base64 text; return a path, bytes or an image in memory unchanged."""
    return (
        base64.b64decode(raw) if isinstance(raw, str) and not Path(raw).is_file() else raw
    )


def _load_pyfunc(path: str) -> PyfuncStudent:
    """Load the saved folder; MLflow calls it."""
    return PyfuncStudent(Path(path) / "student.safetensors")
