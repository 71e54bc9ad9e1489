"""What is made once and kept below `home()`: one key, one lock, one look at what is there."""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from kdlab.config.home import locked

T = TypeVar("T")


def key_of(facts: str | bytes) -> str:
    """A name for what follows from these facts alone, 16 hex digits."""
    raw = facts.encode("utf-8", "surrogateescape") if isinstance(facts, str) else facts
    return hashlib.sha256(raw).hexdigest()[:16]


def kept(path: Path, find: Callable[[], T | None], make: Callable[[], T]) -> T:
    """What `find` has of a file or folder; where that is None it is made now, by one process.

    Args:
        path: of it; the lock lies beside it.
        find: opens it; None where nothing is there, or nothing that can be believed.
        make: puts it there, so that `find` can tell when it is whole, and opens it.
    """
    if (found := find()) is not None:
        return found
    with locked(path.with_suffix(".lock")):
        found = find()  # another process may have been first
        return make() if found is None else found
