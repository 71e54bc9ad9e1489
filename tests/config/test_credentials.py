"""Passwords are named in specs, looked up where they are used, and never shown."""

import os

import pytest

import kdlab
from kdlab.cluster.coordination.lease_store import InRedis, make_store
from kdlab.config import credentials
from kdlab.errors import BadInput, SpecError


@pytest.fixture
def secrets(tmp_path, monkeypatch):
    path = tmp_path / "secrets"
    path.write_text("# mine\nredis = from file\nempty=\n")
    path.chmod(0o600)
    monkeypatch.setenv("KDLAB_SECRETS", str(path))
    return path


def test_a_password_is_looked_up_where_it_is_used(secrets, monkeypatch):
    monkeypatch.setenv("KDLAB_PASSWORD", "a/b@c:d")
    assert credentials.revealed("redis://:<env:KDLAB_PASSWORD>@host/0") == (
        "redis://:a%2Fb%40c%3Ad@host/0"
    )
    assert credentials.revealed("postgresql://me:<secret:redis>@h/db") == (
        "postgresql://me:from%20file@h/db"
    )
    assert credentials.revealed("sqlite:////tmp/x.db") == "sqlite:////tmp/x.db"


@pytest.mark.parametrize("name", ["KDLAB_NOT_THERE", "secret:empty", "secret:nobody"])
def test_what_is_not_there_is_named(secrets, name):
    reference = name if ":" in name else f"env:{name}"
    with pytest.raises(BadInput, match=name.rpartition(":")[2]):
        credentials.revealed(f"x://u:<{reference}>@h")


@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("http://<env:KDLAB_PASSWORD>/x", "is not the whole password"),
        ("http://host/<env:KDLAB_PASSWORD>", "is not the whole password"),
        ("http://me:<env:KDLAB_PASSWORD>@h/<secret:redis>", "is not the whole password"),
        ("http://<env:KDLAB_PASSWORD>:x@host", "is not the whole password"),
        ("http://me:x<env:KDLAB_PASSWORD>@host", "is not the whole password"),
        ("http://me:<env:AWS_SECRET_ACCESS_KEY>@host", "begins with KDLAB_"),
        ("http://me:<file:/etc/hostname>@host", "is not the whole password"),
        ("http://me:<file:hostname>@host", "begins with KDLAB_"),
    ],
)
def test_a_config_of_somebody_else_sends_nothing_away(secrets, monkeypatch, address, why):
    """Once, any variable or file could be filled into any part of any host's address."""
    monkeypatch.setenv("KDLAB_PASSWORD", "mine")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "mine")
    with pytest.raises(BadInput, match=why):
        credentials.revealed(address)


def test_the_file_of_secrets_is_for_its_owner_alone(secrets):
    secrets.chmod(0o604)
    with pytest.raises(BadInput, match="chmod 600"):
        credentials.revealed("x://u:<secret:redis>@h")
    secrets.unlink()
    os.mkfifo(secrets, 0o600)
    with pytest.raises(BadInput, match="plain file"):  # it hung for ever
        credentials.revealed("x://u:<secret:redis>@h")


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
    """The password was once written to `spec.yaml`, MLflow and the model's card."""
    with pytest.raises(SpecError) as error:
        kdlab.load("smoke/served", override)
    assert "<env:KDLAB_NAME>" in str(error.value)
    assert "hunter2" not in str(error.value)


def test_a_spec_that_names_one_keeps_the_name(monkeypatch):
    monkeypatch.setenv("KDLAB_STORE_PASSWORD", "hunter2")
    override = "teacher_pool.store=redis://:<env:KDLAB_STORE_PASSWORD>@127.0.0.1:1/0"
    experiment = kdlab.load("smoke/served", override)
    assert "<env:KDLAB_STORE_PASSWORD>" in str(experiment.spec.to_dict())
    assert "hunter2" not in str(experiment.spec.to_dict())
    monkeypatch.delenv("KDLAB_STORE_PASSWORD")
    with pytest.raises(SpecError, match="KDLAB_STORE_PASSWORD is not set"):
        kdlab.load("smoke/served", override)


async def _connection(url):
    store = make_store(url, "kdlab")
    assert isinstance(store, InRedis)
    return store.redis.connection_pool.connection_kwargs


def test_redis_gets_the_password(monkeypatch):
    import asyncio

    monkeypatch.setenv("KDLAB_STORE_PASSWORD", "hunter@2")
    options = asyncio.run(_connection("redis://:<env:KDLAB_STORE_PASSWORD>@127.0.0.1:1/0"))
    assert options["password"] == "hunter@2"


def test_a_store_that_is_neither_redis_nor_a_file_is_refused():
    with pytest.raises(SpecError, match="redis://host"):
        kdlab.load("smoke/served", "teacher_pool.store=nonsense")
