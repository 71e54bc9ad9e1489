"""The MLflow store of a machine's runs: one SQLite file, created by the first that needs it.

MLflow creates the tables of a new file without a lock. Two runs that start together, or one that
is killed meanwhile, leave incomplete tables, and MLflow refuses that file from then on.
"""

import logging
import os
import re
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from mlflow import MlflowClient

from kdlab.config import credentials
from kdlab.config.home import locked

_SQLITE = "sqlite:///"
_FORBIDDEN = re.compile(r"[^\w\-./ :]")


def client(uri: str) -> MlflowClient:
    """Client of a store; an SQLite file is created first where it is missing.

    Args:
        uri: of the store; the name of a password in it is replaced by the password.
    """
    address = credentials.revealed(uri)
    if address.startswith(_SQLITE) and "?" not in address:
        make_sure_of(Path(address.removeprefix(_SQLITE)))
    return MlflowClient(address)


def _make(uri: str) -> None:
    MlflowClient(uri).search_experiments(max_results=1)


def make_sure_of(path: Path, make: Callable[[str], None] = _make) -> None:
    """Create the SQLite store with all its tables where it is missing, one process at a time.

    An incomplete store without a run is renamed first.
    """
    with locked(path.with_name(f"{path.name}.lock")):
        if path.exists() and _is_half_made(path):
            set_aside = path.with_name(f"{path.name}.half-made")
            logging.warning("%s is incomplete; renamed to %s", path, set_aside)
            os.replace(path, set_aside)
        if not path.exists():
            new = path.with_name(f"{path.name}.new")
            for end in ("", "-journal"):  # of a process that was killed
                new.with_name(new.name + end).unlink(missing_ok=True)
            make(f"{_SQLITE}{new}")
            os.replace(new, path)


def _is_half_made(path: Path) -> bool:
    # Not read-only: opening it rolls back the transaction of a killed writer.
    with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=rw", uri=True)) as file:
        tables = {name for (name,) in file.execute("select name from sqlite_master")}
        runs = "runs" in tables and file.execute("select 1 from runs limit 1").fetchone()
        begun = any(name.startswith("_alembic_tmp") for name in tables)
        return not runs and (begun or "experiments" not in tables)


def experiment_id(client: MlflowClient, name: str, uri: str) -> str:
    """Id of the experiment of this name; created where it is missing."""
    experiment = client.get_experiment_by_name(name)
    if experiment is not None:
        if experiment.lifecycle_stage == "deleted":
            client.restore_experiment(experiment.experiment_id)
        return str(experiment.experiment_id)
    if not uri.startswith(_SQLITE):
        return str(client.create_experiment(name))
    # Beside the database, independent of the current folder.
    root = Path(uri.removeprefix(_SQLITE)).parent / "mlartifacts"
    location = (root / cleaned(name).replace("/", "_")).as_uri()
    return str(client.create_experiment(name, artifact_location=location))


def cleaned(name: str) -> str:
    """Name with all characters replaced that MLflow does not accept."""
    return _FORBIDDEN.sub("_", name)
