"""Passwords in addresses: a spec names them, and kdlab looks them up where it uses them.

    tracking.uri: postgresql://kdlab:<env:KDLAB_MLFLOW_PASSWORD>@db/mlflow
    teacher_pool.store: redis://:<secret:redis>@10.0.0.7/0

Specs are stored in run folders, in MLflow and in model cards, so an address that holds the
password itself is refused. A spec may also come from somebody else and name any host: kdlab reads
only variables that begin with KDLAB_ and the user's file of secrets, and only as a whole password.
"""

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote, urlsplit

from kdlab.config.home import read_plain
from kdlab.errors import BadInput, Fault, short

_REFERENCE = re.compile(r"<(env|file|secret):([^<>]*)>")
_USER = re.compile(r"(?<=://)(?P<user>[^/?#@:]*):(?P<password>[^/?#]*)(?=@)")
_PREFIX = "KDLAB_"
WEBHOOK = "KDLAB_WEBHOOK"  # address for alerts; specs cannot name it
_LARGEST = 65_536  # bytes of the secrets file


def secrets_file() -> Path:
    """Path of the secrets: `KDLAB_SECRETS` or ~/.config/kdlab/secrets, lines of NAME=password."""
    chosen = os.environ.get("KDLAB_SECRETS")
    return Path(chosen) if chosen else Path.home() / ".config" / "kdlab" / "secrets"


def faults(field: str, address: str | None, *, lookup: bool = True) -> Iterator[Fault]:
    """Yield faults of an address in a spec: a password in it, or a reference to a missing one.

    Args:
        field: name of the spec's field.
        address: value of the field.
        lookup: also check that this machine has the password.
    """
    if address is None:
        return
    match = _USER.search(address)
    if match and _REFERENCE.sub("", match["password"]):
        yield Fault(
            field,
            f"{masked(address)} holds a password, and specs are stored and shown: write "
            "<env:KDLAB_NAME> or <secret:NAME> in its place, and set the password there",
        )
        return
    try:
        if lookup:
            revealed(address)
    except BadInput as error:
        yield Fault(field, str(error))


def revealed(address: str) -> str:
    """Return an address with its password filled in, percent-encoded.

    Raises:
        BadInput: a reference is not the whole password, or names a missing one.
    """
    matches = [match for match in _USER.finditer(address) if _password_reference(match)]
    outside = address
    for match in reversed(matches):
        outside = outside[: match.start()] + outside[match.end() :]
    if misplaced := _REFERENCE.search(outside):
        raise BadInput(
            f"{misplaced[0]} in {masked(address)!r} is not the whole password, so kdlab does not "
            "look it up: write scheme://user:<env:KDLAB_NAME>@host"
        )
    for match in reversed(matches):
        reference = _password_reference(match)
        assert reference is not None
        user_info = f"{match['user']}:{quote(_secret(*reference.groups()), '')}"
        address = address[: match.start()] + user_info + address[match.end() :]
    return address


def _password_reference(match: re.Match[str]) -> re.Match[str] | None:
    """Return the reference if it is the whole password."""
    return _REFERENCE.fullmatch(match["password"])


def masked(text: str) -> str:
    """Replace passwords in addresses by ***; references stay."""
    return _USER.sub(
        lambda match: (
            match[0]
            if not _REFERENCE.sub("", match["password"])
            else f"{match['user']}:***"
        ),
        text,
    )


def _secret(kind: str, name: str) -> str:
    if kind == "secret" and name != WEBHOOK:
        return _secret_from_file(secrets_file(), name)
    if kind != "env" or not name.startswith(_PREFIX) or name == WEBHOOK:
        raise BadInput(
            f"<{kind}:{name}> is refused: a spec could send any of your secrets to any "
            f"host. Put it into a variable that begins with {_PREFIX} (<env:{_PREFIX}NAME>), or "
            f"as a line NAME=password into {secrets_file()} (<secret:NAME>)"
        )
    value = os.environ.get(name)
    if not value:
        raise BadInput(f"the environment variable {name} is not set (<env:{name}>)")
    return value


def webhook() -> str | None:
    """Return the address for alerts; BadInput where it is not https or the file is unsafe."""
    path, address = secrets_file(), os.environ.get(WEBHOOK)
    if not address and path.exists():
        address = _read_secrets(path, WEBHOOK).get(WEBHOOK)
    this = ("127.0.0.1", "::1", "localhost")
    with suppress(ValueError):  # http://[ and a port that is no number
        parts = urlsplit(address or "https://none")
        local = parts.scheme == "http" and parts.hostname in this
        if parts.hostname and parts.port != 0 and (local or parts.scheme == "https"):
            return address
    raise BadInput(
        f"{WEBHOOK} is no https:// address (http:// works for this machine only)."
    )


def host_port(address: str) -> tuple[str | None, int | None]:
    """Return host and port of an address; BadInput where it is malformed."""
    try:
        parts = urlsplit(address if "://" in address else f"tcp://{address}")
        return parts.hostname, parts.port
    except ValueError as error:
        why = f"no address ({error}). Write it as SCHEME://HOST:PORT"
        raise BadInput(f"{short(masked(address))} is {why}.") from error


def _secret_from_file(path: Path, name: str) -> str:
    secrets = _read_secrets(path, name)
    if not secrets.get(name):
        raise BadInput(f"<secret:{name}>: {path} has no line {name}=password")
    return secrets[name]


def _read_secrets(path: Path, name: str) -> dict[str, str]:
    try:
        facts, text = path.stat(), read_plain(path, _LARGEST).decode()
    except (OSError, ValueError) as error:
        raise BadInput(f"<secret:{name}>: cannot read the file {path}: {error}") from error
    if facts.st_uid not in (0, os.getuid()) or facts.st_mode & 0o007:
        raise BadInput(
            f"<secret:{name}>: {path} must be your file, and no other user may read it "
            f"(chmod 600 {path})"
        )
    lines = (line.partition("=") for line in text.splitlines())
    return {key.strip(): value.strip() for key, _, value in lines}
