"""Passwords are named in specs, looked up where they are used, and never shown."""

import pytest

import kdlab
from kdlab.cluster.coordination.lease_store import InRedis, make_store
from kdlab.config import credentials
from kdlab.errors import BadInput, SpecError


def test_a_password_is_looked_up_where_it_is_used(tmp_path, monkeypatch):
    monkeypatch.setenv("PASSWORD", "a/b@c:d")
    (tmp_path / "secret").write_text("from file\n")
    assert credentials.revealed("redis://:<env:PASSWORD>@host/0") == (
        "redis://:a%2Fb%40c%3Ad@host/0"
    )
    assert credentials.revealed(f"postgresql://me:<file:{tmp_path}/secret>@h/db") == (
        "postgresql://me:from%20file@h/db"
    )
    assert credentials.revealed("sqlite:////tmp/x.db") == "sqlite:////tmp/x.db"


@pytest.mark.parametrize(
    "address", ["x://u:<env:NOT_THERE>@h", "x://u:<file:/not/there>@h"]
)
def test_what_is_not_there_is_named(address):
    with pytest.raises(BadInput, match=r"NOT_THERE|/not/there"):
        credentials.revealed(address)


@pytest.mark.parametrize(
    ("shown", "address"),
    [
        ("redis://:***@host/0", "redis://:hunter2@host/0"),
        ("http://me:***@host", "http://me:hunter2@host"),
        ("http://me:***@host", "http://me:hunter2<env:A>@host"),
        ("http://me:<env:A>@host", "http://me:<env:A>@host"),
        ("http://me@host:80/x", "http://me@host:80/x"),
        ("tls://10.0.0.1:8786", "tls://10.0.0.1:8786"),
    ],
)
def test_a_password_is_not_shown(shown, address):
    assert credentials.masked(address) == shown


@pytest.mark.parametrize(
    "override",
    [
        "tracking.uri=postgresql://me:hunter2@db/mlflow",
        "teacher_pool.store=redis://:hunter2@host/0",
    ],
)
def test_a_spec_that_holds_a_password_is_refused_without_it(override):
    """`spec.yaml` kept it, and MLflow and the model's card showed it, before."""
    with pytest.raises(SpecError) as found:
        kdlab.load("smoke/served", override)
    assert "<env:NAME>" in str(found.value)
    assert "hunter2" not in str(found.value)


def test_a_spec_that_names_one_keeps_the_name(monkeypatch):
    monkeypatch.setenv("STORE_PASSWORD", "hunter2")
    override = "teacher_pool.store=redis://:<env:STORE_PASSWORD>@127.0.0.1:1/0"
    experiment = kdlab.load("smoke/served", override)
    assert "<env:STORE_PASSWORD>" in str(experiment.spec.to_dict())
    assert "hunter2" not in str(experiment.spec.to_dict())
    monkeypatch.delenv("STORE_PASSWORD")
    with pytest.raises(SpecError, match="STORE_PASSWORD is not set"):
        kdlab.load("smoke/served", override)


async def _connection(url):
    store = make_store(url, "kdlab")
    assert isinstance(store, InRedis)
    return store.redis.connection_pool.connection_kwargs


def test_redis_gets_the_password(monkeypatch):
    import asyncio

    monkeypatch.setenv("STORE_PASSWORD", "hunter@2")
    found = asyncio.run(_connection("redis://:<env:STORE_PASSWORD>@127.0.0.1:1/0"))
    assert found["password"] == "hunter@2"


def test_a_store_that_is_neither_redis_nor_a_file_is_refused():
    with pytest.raises(SpecError, match="redis://host"):
        kdlab.load("smoke/served", "teacher_pool.store=nonsense")
