"""Schedulers on other machines that this user has named, as `known_hosts` of ssh keeps hosts.

Dask's messages are pickles, so whoever answers at a scheduler's address can run code as whoever
asks it. A config or a run folder may come from somebody else: an address in it counts once the
user has said it, on the command line, in a notebook's cell or in `KDLAB_ADDRESSES`.
"""

import os
import re
from collections.abc import Mapping, Sequence

from kdlab.config.home import home
from kdlab.errors import BadInput

_VARIABLE, _FILE = "KDLAB_ADDRESSES", "known_schedulers"
_ADDRESS = re.compile(r"(?:tcp|tls)://[\w.:\[\]-]+")


def trust(address: str) -> None:
    """The user has named it."""
    if address not in _kept():
        # Short: whole, whoever else writes.
        with (home() / _FILE).open("a", encoding="utf-8") as file:
            file.write(f"{address}\n")


def trust_named(overrides: object) -> None:
    """All addresses in what the user has said, as texts or mappings."""
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
    """Before anything is said to an address that stands in a spec.

    Args:
        field: of the spec, such as "teacher_pool".
        address: of a scheduler.

    Raises:
        BadInput: the user has never named it.
    """
    if address in _kept() or address in os.environ.get(_VARIABLE, "").split():
        return
    raise BadInput(
        f"{field}.address is {address}, which you have not named yet: whoever answers there can "
        "run code as you, and a config may come from somebody else. If you trust it, say so in "
        f"the environment, {_VARIABLE}={address}, or once as {field}.address={address} behind "
        "the command or in kdlab.load(...)"
    )


def _kept() -> set[str]:
    try:
        return set((home() / _FILE).read_text(encoding="utf-8").split())
    except FileNotFoundError:
        return set()
