"""Remember the remote schedulers that this user has named, like `known_hosts` of ssh.

Dask's messages are pickles, so the process at a scheduler's address can run code as its client.
A config or a run folder may come from somebody else: an address in it is trusted once the user
has named it, on the command line, in a notebook's cell or in `KDLAB_ADDRESSES`.
"""

import os
import re
from collections.abc import Mapping, Sequence

from kdlab.config.home import home
from kdlab.errors import BadInput

_VARIABLE, _FILE = "KDLAB_ADDRESSES", "known_schedulers"
_ADDRESS = re.compile(r"(?:tcp|tls)://[\w.:\[\]-]+")


def trust(address: str) -> None:
    """Remember an address that the user has named."""
    if address not in _trusted():
        # A short line is written at once, even where other processes append too.
        with (home() / _FILE).open("a", encoding="utf-8") as file:
            file.write(f"{address}\n")


def trust_named(overrides: object) -> None:
    """Trust all addresses in the user's overrides, which are texts, mappings or sequences."""
    if isinstance(overrides, str):
        for address in _ADDRESS.findall(overrides):
            trust(address)
    elif isinstance(overrides, Mapping):
        for value in overrides.values():
            trust_named(value)
    elif isinstance(overrides, Sequence):
        for value in overrides:
            trust_named(value)


def require_known(field: str, address: str) -> None:
    """Refuse an address in a spec that the user has not named, before connecting to it.

    Args:
        field: of the spec, such as "teacher_pool".
        address: of a scheduler.

    Raises:
        BadInput: the user has never named it.
    """
    if address in _trusted() or address in os.environ.get(_VARIABLE, "").split():
        return
    raise BadInput(
        f"{field}.address is {address}, which you have not named yet: the process there can "
        "run code as you, and a config may come from somebody else. If you trust it, set "
        f"{_VARIABLE}={address} in the environment, or give {field}.address={address} once "
        "after the command or in kdlab.load(...)"
    )


def _trusted() -> set[str]:
    try:
        return set((home() / _FILE).read_text(encoding="utf-8").split())
    except FileNotFoundError:
        return set()
