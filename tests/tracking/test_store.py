"""The MLflow file of a machine's runs: made once, also by processes at once or killed ones."""

import shutil
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing

import pytest

from kdlab.tracking.store import client, make_sure_of

FROM_ITS_OWN_PROCESS = """
import sys
from kdlab.tracking.store import client
print(len(client(sys.argv[1]).search_experiments()))
"""


@pytest.mark.slow("four Pythons with MLflow, one of which makes its tables")
@pytest.mark.nightly
def test_four_that_come_at_once_find_the_same_whole_store(tmp_path):
    """MLflow makes its tables without a lock: four at once failed, and all runs after them."""
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


def test_one_at_a_time_makes_it_and_the_others_find_it_whole(tmp_path):
    """The lock file excludes threads as it excludes processes."""
    path, makers, counts = tmp_path / "mlflow.db", [], []
    others_wait = threading.Barrier(4)

    def make(uri):
        makers.append(uri)
        new = uri.removeprefix("sqlite:///")
        sqlite(new, "create table experiments (name text)")
        assert not path.exists()  # nobody can open it yet
        sqlite(new, "create table runs (name text)")

    def come():
        others_wait.wait()
        make_sure_of(path, make)
        with closing(sqlite3.connect(path)) as file:
            counts.append(len(file.execute("select * from sqlite_master").fetchall()))

    threads = [threading.Thread(target=come) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(makers) == 1
    assert counts == [2, 2, 2, 2]


def test_what_somebody_who_was_killed_left_is_made_anew(tmp_path):
    path = tmp_path / "mlflow.db"
    (tmp_path / "mlflow.db.new").write_bytes(b"half of it")
    make_sure_of(path, lambda uri: sqlite(uri[10:], "create table experiments (name text)"))
    assert path.read_bytes().startswith(b"SQLite")
    assert not (tmp_path / "mlflow.db.new").exists()


def sqlite(path, *statements):
    with closing(sqlite3.connect(path)) as file, file:
        for statement in statements:
            file.execute(statement)


def test_a_half_made_store_is_put_aside(tmp_path, caplog, empty_store):
    path = tmp_path / "mlflow.db"
    sqlite(
        path,
        "create table experiments (name text)",
        "create table _alembic_tmp_experiments (name text)",
        "create table runs (name text)",
    )
    make_sure_of(path, lambda uri: shutil.copyfile(empty_store, uri[10:]))
    repaired = client(f"sqlite:///{path}")
    assert [e.name for e in repaired.search_experiments()] == ["Default"]
    assert (tmp_path / "mlflow.db.half-made").exists()
    assert "is incomplete" in caplog.text
    repaired.create_experiment("another")
    assert len(client(f"sqlite:///{path}").search_experiments()) == 2  # kept from now on


def test_what_a_killed_writer_had_begun_is_taken_back(tmp_path):
    """A killed writer leaves a journal, which a reader without write access cannot apply."""
    intact, killed = tmp_path / "whole.db", tmp_path / "mlflow.db"
    sqlite(intact, "create table experiments (name text)", "create table runs (name text)")
    sqlite(intact, "insert into runs values ('mine')")
    with closing(sqlite3.connect(intact)) as writer:
        writer.execute("pragma cache_size = 1")  # pages reach the file before the commit
        writer.execute("delete from runs")
        writer.executemany("insert into experiments values (?)", [("x" * 500,)] * 500)
        shutil.copyfile(intact, killed)
        shutil.copyfile(f"{intact}-journal", f"{killed}-journal")
    make_sure_of(killed)
    with closing(sqlite3.connect(killed)) as file:
        assert file.execute("select * from runs").fetchall() == [("mine",)]
        assert not file.execute("select * from experiments").fetchall()


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
