"""Writes later what MLflow could not take during a run."""

import logging
import os
import warnings
from pathlib import Path


def quiet() -> None:
    """MLflow and SQLAlchemy tell of migrations and deprecations nobody here can mend."""
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    logging.getLogger("alembic").setLevel(logging.WARNING)
    logging.getLogger("mlflow").setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", module="sqlalchemy|mlflow")


def sync(run_folder: Path) -> int:
    """Write a run's remaining events; how many there were.

    Raises:
        Exception: what MLflow raised; the position is kept, so try again later.
    """
    quiet()
    from kdlab.tracking.writer import Writer  # 2 s of import

    return Writer(run_folder).step()


def sync_sweep(folder: Path) -> int:
    """The same of a sweep and its trials.

    Raises:
        Exception: what MLflow raised; the position is kept, so try again later.
    """
    quiet()
    from kdlab.tracking.sweep import SweepWriter

    return SweepWriter(folder).step()
