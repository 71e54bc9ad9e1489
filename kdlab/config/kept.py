"""What is made once and kept below `home()`: one key, one lock, one look at what is there."""

import hashlib
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from kdlab.config.home import locked
from kdlab.config.seal import seal

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


def keep_arrays(
    folder: Path, arrays: Mapping[str, NDArray[Any]], facts: Mapping[str, object]
) -> None:
    """Seal a folder of arrays, each as NAME.npy; what was there before goes."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)
    seal(folder, (f"{name}.npy" for name in arrays), facts)
