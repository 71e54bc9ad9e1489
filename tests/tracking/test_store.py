"""The MLflow file of a machine's runs: made once, whoever comes at the same time or is killed."""

import sqlite3
import subprocess
import sys
from contextlib import closing

import pytest

from kdlab.tracking.store import client, make_sure_of

FROM_ITS_OWN_PROCESS = """
import sys
from kdlab.tracking.store import client
print(len(client(sys.argv[1]).search_experiments()))
"""


@pytest.mark.slow
def test_four_that_come_at_once_find_the_same_whole_store(tmp_path):
    """MLflow makes its tables without a lock: all four failed, and each run after them."""
    command = [
        sys.executable,
        "-c",
        FROM_ITS_OWN_PROCESS,
        f"sqlite:///{tmp_path}/mlflow.db",
    ]
    all_four = [
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(4)
    ]
    assert [process.communicate()[0] for process in all_four] == ["1\n"] * 4


def sqlite(path, *statements):
    with closing(sqlite3.connect(path)) as file, file:
        for statement in statements:
            file.execute(statement)


def test_a_half_made_store_is_put_aside(tmp_path, caplog):
    path = tmp_path / "mlflow.db"
    sqlite(
        path,
        "create table experiments (name text)",
        "create table _alembic_tmp_experiments (name text)",
        "create table runs (name text)",
    )
    made = client(f"sqlite:///{path}")
    assert [e.name for e in made.search_experiments()] == ["Default"]
    assert (tmp_path / "mlflow.db.half-made").exists()
    assert "never finished" in caplog.text
    made.create_experiment("another")
    assert len(client(f"sqlite:///{path}").search_experiments()) == 2  # kept from now on


def test_one_with_runs_is_never_put_aside(tmp_path):
    path = tmp_path / "mlflow.db"
    sqlite(
        path,
        "create table _alembic_tmp_experiments (name text)",
        "create table runs (name text)",
        "insert into runs values ('mine')",
    )
    make_sure_of(path)
    with closing(sqlite3.connect(path)) as file:
        assert file.execute("select * from runs").fetchall() == [("mine",)]
    assert not (tmp_path / "mlflow.db.half-made").exists()
