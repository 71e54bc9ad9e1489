"""The MLflow store of a machine's runs: one SQLite file, made once by whoever comes first.

MLflow makes the tables of a new file without a lock. Two runs that start together, or one that is
killed meanwhile, leave tables half made, and MLflow refuses that file ever after.
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
    """The client of a store that is there; a file of ours is made first.

    Args:
        uri: of the store; a password that is named in it is looked up.
    """
    address = credentials.revealed(uri)
    if address.startswith(_SQLITE) and "?" not in address:
        make_sure_of(Path(address.removeprefix(_SQLITE)))
    return MlflowClient(address)


def _make(uri: str) -> None:
    MlflowClient(uri).search_experiments(max_results=1)


def make_sure_of(path: Path, make: Callable[[str], None] = _make) -> None:
    """An SQLite store with all its tables stands there; one at a time makes it.

    A half-made one that has no run is put aside.
    """
    with locked(path.with_name(f"{path.name}.lock")):
        if path.exists() and _is_half_made(path):
            aside = path.with_name(f"{path.name}.half-made")
            logging.warning("%s was never finished; it is %s now", path, aside)
            os.replace(path, aside)
        if not path.exists():
            new = path.with_name(f"{path.name}.new")
            for end in ("", "-journal"):  # of somebody who was killed
                new.with_name(new.name + end).unlink(missing_ok=True)
            make(f"{_SQLITE}{new}")
            os.replace(new, path)


def _is_half_made(path: Path) -> bool:
    # Not read-only: what a writer who was killed had begun is taken back by the next who opens it.
    with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=rw", uri=True)) as file:
        tables = {name for (name,) in file.execute("select name from sqlite_master")}
        runs = "runs" in tables and file.execute("select 1 from runs limit 1").fetchone()
        begun = any(name.startswith("_alembic_tmp") for name in tables)
        return not runs and (begun or "experiments" not in tables)


def experiment_id(client: MlflowClient, name: str, uri: str) -> str:
    """Id of the experiment of this name, made if there is none."""
    found = client.get_experiment_by_name(name)
    if found is not None:
        if found.lifecycle_stage == "deleted":
            client.restore_experiment(found.experiment_id)
        return str(found.experiment_id)
    if not uri.startswith(_SQLITE):
        return str(client.create_experiment(name))
    # Beside the database, whatever the current folder is.
    root = Path(uri.removeprefix(_SQLITE)).parent / "mlartifacts"
    location = (root / cleaned(name).replace("/", "_")).as_uri()
    return str(client.create_experiment(name, artifact_location=location))


def cleaned(name: str) -> str:
    """A name that MLflow takes."""
    return _FORBIDDEN.sub("_", name)
