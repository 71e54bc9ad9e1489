"""Passwords in addresses: named in a spec, looked up where they are used, never written.

    tracking.uri: postgresql://kdlab:<env:MLFLOW_PASSWORD>@db/mlflow
    teacher_pool.store: redis://:<file:/run/secrets/redis>@10.0.0.7/0

A spec is kept in its run's folder, in MLflow and in the exported model's card, so an address
that holds the password itself is refused.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

from kdlab.errors import BadInput, Fault

_REFERENCE = re.compile(r"<(env|file):([^<>]+)>")
_USER = re.compile(r"(?<=://)(?P<user>[^/?#@:]*):(?P<password>[^/?#]*)(?=@)")
_LONGEST = 4096  # bytes of a file with a password


def faults(field: str, address: str | None, *, here: bool = True) -> Iterator[Fault]:
    """What is wrong with an address of a spec: a password in it, or one that nobody gave.

    Args:
        field: of the spec.
        address: its value.
        here: the password is looked up on this machine, so it must be there.
    """
    if address is None:
        return
    found = _USER.search(address)
    if found and _REFERENCE.sub("", found["password"]):
        yield Fault(
            field,
            f"{masked(address)} holds a password, and specs are kept and shown: write "
            "<env:NAME> or <file:/path> in its place, and give it to the run there",
        )
        return
    try:
        if here:
            revealed(address)
    except BadInput as error:
        yield Fault(field, str(error))


def revealed(address: str) -> str:
    """With each password in its place, quoted as addresses ask.

    Raises:
        BadInput: a variable is not set, or a file cannot be read.
    """
    return _REFERENCE.sub(lambda found: quote(_secret(*found.groups()), safe=""), address)


def masked(text: str) -> str:
    """An address as it may be shown: references stay, a password that is in it does not."""
    return _USER.sub(
        lambda found: (
            found[0]
            if not _REFERENCE.sub("", found["password"])
            else f"{found['user']}:***"
        ),
        text,
    )


def _secret(kind: str, name: str) -> str:
    if kind == "env":
        value = os.environ.get(name)
        if not value:
            raise BadInput(f"the environment variable {name} is not set (<env:{name}>)")
        return value
    try:
        with Path(name).open("rb") as file:
            text = file.read(_LONGEST).decode().strip()
    except (OSError, ValueError) as error:
        raise BadInput(f"<file:{name}> cannot be read: {error}") from error
    if not text:
        raise BadInput(f"<file:{name}> is empty")
    return text
