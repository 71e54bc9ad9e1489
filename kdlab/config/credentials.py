"""Passwords in addresses: named in a spec, looked up where they are used, never written.

    tracking.uri: postgresql://kdlab:<env:KDLAB_MLFLOW_PASSWORD>@db/mlflow
    teacher_pool.store: redis://:<secret:redis>@10.0.0.7/0

A spec is kept in its run's folder, in MLflow and in the exported model's card, so an address
that holds the password itself is refused. A spec may also come from somebody else, and name any
host: so only what was put there for kdlab is ever looked up, variables that begin with KDLAB_ and
the user's own file of secrets, and only as a whole password.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote, urlsplit

from kdlab.config.home import read_plain
from kdlab.errors import BadInput, Fault

_REFERENCE = re.compile(r"<(env|file|secret):([^<>]*)>")
_USER = re.compile(r"(?<=://)(?P<user>[^/?#@:]*):(?P<password>[^/?#]*)(?=@)")
_PREFIX = "KDLAB_"
WEBHOOK = "KDLAB_WEBHOOK"  # where alerts go: its user's own, and no spec can name it
_LARGEST = 65_536  # bytes of the file


def secrets_file() -> Path:
    """`KDLAB_SECRETS`, or ~/.config/kdlab/secrets: lines of NAME=password."""
    chosen = os.environ.get("KDLAB_SECRETS")
    return Path(chosen) if chosen else Path.home() / ".config" / "kdlab" / "secrets"


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
            "<env:KDLAB_NAME> or <secret:NAME> in its place, and give it to the run there",
        )
        return
    try:
        if here:
            revealed(address)
    except BadInput as error:
        yield Fault(field, str(error))


def revealed(address: str) -> str:
    """With its password in its place, quoted as addresses ask.

    Raises:
        BadInput: it names one elsewhere than as the whole password, or one that nobody gave.
    """
    named = [found for found in _USER.finditer(address) if _named(found)]
    outside = address
    for found in reversed(named):
        outside = outside[: found.start()] + outside[found.end() :]
    if strange := _REFERENCE.search(outside):
        raise BadInput(
            f"{strange[0]} stands in {masked(address)!r} elsewhere than as the whole password "
            "(scheme://user:<env:KDLAB_NAME>@host), and is not looked up there"
        )
    for found in reversed(named):
        reference = _named(found)
        assert reference is not None
        filled = f"{found['user']}:{quote(_secret(*reference.groups()), '')}"
        address = address[: found.start()] + filled + address[found.end() :]
    return address


def _named(found: re.Match[str]) -> re.Match[str] | None:
    """The reference that is the whole password."""
    return _REFERENCE.fullmatch(found["password"])


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
    if kind == "secret" and name != WEBHOOK:
        return _from_file(secrets_file(), name)
    if kind != "env" or not name.startswith(_PREFIX) or name == WEBHOOK:
        raise BadInput(
            f"<{kind}:{name}> is not looked up: a spec could send any secret of yours to any "
            f"host. Put it into a variable that begins with {_PREFIX} (<env:{_PREFIX}NAME>), or "
            f"as a line NAME=password into {secrets_file()} (<secret:NAME>)"
        )
    value = os.environ.get(name)
    if not value:
        raise BadInput(f"the environment variable {name} is not set (<env:{name}>)")
    return value


def webhook() -> str | None:
    """The address that alerts go to. BadInput: it is no https, or the file cannot be believed."""
    path, address = secrets_file(), os.environ.get(WEBHOOK)
    if not address and path.exists():
        address = _lines(path, WEBHOOK).get(WEBHOOK)
    parts = urlsplit(address or "https://none")
    here = parts.scheme == "http" and parts.hostname in ("127.0.0.1", "::1", "localhost")
    if not parts.hostname or not (here or parts.scheme == "https"):
        raise BadInput(
            f"{WEBHOOK} is no https:// address (http:// is for this machine alone)."
        )
    return address


def _from_file(path: Path, name: str) -> str:
    found = _lines(path, name)
    if not found.get(name):
        raise BadInput(f"<secret:{name}>: {path} has no line {name}=password")
    return found[name]


def _lines(path: Path, name: str) -> dict[str, str]:
    try:
        facts, text = path.stat(), read_plain(path, _LARGEST).decode()
    except (OSError, ValueError) as error:
        raise BadInput(
            f"<secret:{name}>: {path}, a plain file, cannot be read: {error}"
        ) from error
    if facts.st_uid not in (0, os.getuid()) or facts.st_mode & 0o007:
        raise BadInput(
            f"<secret:{name}>: {path} must be a file of yours that others may not read "
            f"(chmod 600 {path})"
        )
    lines = (line.partition("=") for line in text.splitlines())
    return {key.strip(): value.strip() for key, _, value in lines}
