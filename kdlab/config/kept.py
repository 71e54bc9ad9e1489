"""Cache entries below `home()`, created once under a lock."""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from kdlab.config.home import locked

T = TypeVar("T")


def key_of(facts: str | bytes) -> str:
    """Return the cache key of the facts that determine an entry, 16 hex digits of SHA-256."""
    raw = facts.encode("utf-8", "surrogateescape") if isinstance(facts, str) else facts
    return hashlib.sha256(raw).hexdigest()[:16]


def load_or_create(path: Path, load: Callable[[], T | None], create: Callable[[], T]) -> T:
    """Load a cache entry, or create it in one process while others wait.

    Args:
        path: file or folder of the entry; the lock file is next to it.
        load: returns the entry, or None where it is missing or damaged.
        create: writes the entry so that `load` recognises a complete one, and returns it.
    """
    if (cached := load()) is not None:
        return cached
    with locked(path.with_suffix(".lock")):
        cached = load()  # another process may have created it meanwhile
        return create() if cached is None else cached
