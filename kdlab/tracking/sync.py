"""Writes to MLflow, now or later, what happened in a folder; and pages beside it."""

import json
import logging
import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kdlab.tracking.event_writer import EventWriter


def quiet() -> None:
    """MLflow and SQLAlchemy tell of migrations and deprecations nobody here can mend."""
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    logging.getLogger("alembic").setLevel(logging.WARNING)
    logging.getLogger("mlflow").setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", module="sqlalchemy|mlflow")


def writer_of(folder: Path) -> "EventWriter":
    """Of a run, or of a sweep and its trials."""
    quiet()  # before 2 s of imports
    if (folder / "sweep.yaml").is_file():
        from kdlab.tracking.sweep import SweepWriter

        return SweepWriter(folder)
    from kdlab.tracking.writer import Writer

    return Writer(folder)


def sync(folder: Path) -> int:
    """Write the remaining events of a run or a sweep; how many there were.

    Raises:
        Exception: what MLflow raised; the position is kept, so try again later.
    """
    return writer_of(folder).step()


def log_page(states: Sequence[Path], name: str, text: str) -> list[str]:
    """A text as an artifact of the MLflow runs of these `tracking.json`; returns their ids."""
    quiet()
    from mlflow import MlflowClient  # 2 s

    found = []
    for path in states:
        state = json.loads(path.read_text())
        run = state["runs"][""]
        MlflowClient(tracking_uri=state["uri"]).log_text(run, text, name)
        found.append(run)
    return found
