"""Files for runs that are in MLflow already."""

import json
from collections.abc import Sequence
from pathlib import Path

from kdlab.config import credentials
from kdlab.tracking.sync import quiet


def log_page(states: Sequence[Path], name: str, text: str) -> list[str]:
    """A text as an artifact of each run's MLflow run; returns their ids.

    Args:
        states: `tracking.json` of each run folder.
        name: of the artifact.
        text: its contents.
    """
    quiet()
    from mlflow import MlflowClient  # 2 s

    found = []
    for path in states:
        state = json.loads(path.read_text())
        run = state["runs"][""]
        MlflowClient(credentials.revealed(state["uri"])).log_text(run, text, name)
        found.append(run)
    return found
