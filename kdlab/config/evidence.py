"""The evidence beside the package: `benchmarks/` of a checkout, which no wheel has."""

import sys
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from types import ModuleType

from kdlab.errors import BadInput

_PACKAGE = Path(__file__).resolve().parents[1]


def folder() -> Path | None:
    """It, in a checkout; a wheel has its cards in the package, and of this name nothing."""
    beside = _PACKAGE.parent / "benchmarks"
    in_a_checkout = not (_PACKAGE / "_packaged").exists()
    return beside if in_a_checkout and (beside / "__init__.py").is_file() else None


def module(name: str) -> ModuleType:
    """A module of this checkout, such as `benchmarks.transport`, whoever else has the name.

    Raises:
        BadInput: kdlab was installed without it.
    """
    if (beside := folder()) is None:
        raise BadInput(
            "Benches and reproductions are in benchmarks/ of kdlab's repository, and this kdlab is "
            f"installed without it: clone the repository at version {version('kdlab')} and "
            "`pip install -e .` there."
        )
    if sys.path[0] != (root := str(beside.parent)):
        sys.path.insert(0, root)
    known = sys.modules.get("benchmarks")
    if known is not None and str(beside) not in getattr(known, "__path__", ()):
        raise BadInput(
            f"Another package named benchmarks is imported here ({known.__file__}), so that of "
            "kdlab cannot be. Call kdlab from a shell or a fresh kernel."
        )
    return import_module(name)
