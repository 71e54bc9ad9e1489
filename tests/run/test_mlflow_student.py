"""The student in MLflow, loaded as any model there is, says what `run.predict` says."""

import base64
import io
import json

import mlflow.pyfunc
import pandas as pd
import pytest
from PIL import Image

pytestmark = pytest.mark.processes("whoever is first makes the run that all read")


def encoded(pixels):
    written = io.BytesIO()
    Image.fromarray(pixels.squeeze()).save(written, "PNG")
    return written.getvalue()


def test_mlflow_loads_the_student_and_scores_images(taught, monkeypatch):
    run = taught
    state = json.loads((run.path / "tracking.json").read_text())
    model = state["models"][state["runs"]["in_process/seed0"]]
    monkeypatch.setenv("MLFLOW_TRACKING_URI", state["uri"])
    loaded = mlflow.pyfunc.load_model(f"models:/{model}")
    images = run.test_images(5)
    raw = [encoded(image) for image in images]
    table = loaded.predict(pd.DataFrame({"image": raw}))
    member = "in_process/seed0"
    expected = run.predict(images, top=10, member=member)
    assert list(table["class"]) == [answer.top for answer in expected]
    again = run.predict(raw, member=member)
    assert [answer.top for answer in again] == [answer.top for answer in expected]
    assert list(table["probability"]) == [answer.probabilities[0] for answer in expected]
    assert all(len(shares) == 10 for shares in table["probabilities"])
    # As a request to `mlflow models serve` carries them.
    texts = [base64.b64encode(image).decode() for image in raw]
    plain = loaded._model_impl.predict(pd.DataFrame({"image": texts}))
    assert list(plain["class"]) == list(table["class"])
