"""A store with MLflow's tables, made once: to make them takes longer than all tests."""

import shutil

import pytest

from kdlab.tracking.store import make_sure_of


@pytest.fixture(scope="session")
def empty_store(tmp_path_factory):
    path = tmp_path_factory.mktemp("mlflow") / "mlflow.db"
    make_sure_of(path)
    return path


@pytest.fixture
def runs(tmp_path, empty_store):
    """A folder for runs or sweeps, with the store beside them."""
    folder = tmp_path / "runs"
    folder.mkdir()
    shutil.copyfile(empty_store, folder / "mlflow.db")
    return folder
