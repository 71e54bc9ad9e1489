"""A student as MLflow loads it: encoded images in, classes and probabilities out."""

import base64
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kdlab.run.outputs.prediction import StudentAtWork

if TYPE_CHECKING:
    import pandas as pd


class PyfuncStudent:
    """What `mlflow.pyfunc.load_model` gives, and what `mlflow models serve` asks."""

    def __init__(self, path: Path) -> None:
        self._student = StudentAtWork(path)

    def predict(self, images: Any, params: object = None) -> "pd.DataFrame":
        """One row an image: class, probability, and the probabilities of all classes in order.

        Args:
            images: a table whose first column has encoded images (bytes, or base64 in a request),
                or a list of those.
            params: of MLflow; there are none.

        Raises:
            BadInput, DataError: there is no image, or one cannot be decoded; it is named.
        """
        import pandas as pd

        raw = images.iloc[:, 0] if hasattr(images, "iloc") else images
        classes = self._student.classes
        found = self._student([_decoded(one) for one in raw], top=len(classes))
        rows = []
        for one in found:
            shares = dict(zip(one.classes, one.probabilities, strict=True))
            rows.append(
                {
                    "class": one.top,
                    "probability": one.probabilities[0],
                    "probabilities": [shares[name] for name in classes],
                }
            )
        return pd.DataFrame(rows)


def _decoded(one: object) -> object:
    """Bytes of base64; a path, bytes, and an image in memory as they are."""
    return (
        base64.b64decode(one) if isinstance(one, str) and not Path(one).is_file() else one
    )


def _load_pyfunc(path: str) -> PyfuncStudent:
    """By MLflow, with the folder that was saved."""
    return PyfuncStudent(Path(path) / "student.safetensors")
