"""The evidence beside the package: `benchmarks/` of a checkout, which no wheel has."""

import sys
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from types import ModuleType

from kdlab.errors import BadInput

_PACKAGE = Path(__file__).resolve().parents[1]


def folder() -> Path | None:
    """Return `benchmarks/` of a checkout; None in a wheel, whose cards are in the package."""
    benchmarks = _PACKAGE.parent / "benchmarks"
    in_a_checkout = not (_PACKAGE / "_packaged").exists()
    return benchmarks if in_a_checkout and (benchmarks / "__init__.py").is_file() else None


def module(name: str) -> ModuleType:
    """Import a module of this checkout, such as `benchmarks.transport`.

    Raises:
        BadInput: kdlab was installed without it, or another `benchmarks` is imported.
    """
    if (benchmarks := folder()) is None:
        raise BadInput(
            "This kdlab is installed without benchmarks/, where benches and reproductions are: "
            f"clone kdlab's repository at version {version('kdlab')} and run "
            "`pip install -e .` there."
        )
    if sys.path[0] != (root := str(benchmarks.parent)):
        sys.path.insert(0, root)
    loaded = sys.modules.get("benchmarks")
    if loaded is not None and str(benchmarks) not in getattr(loaded, "__path__", ()):
        raise BadInput(
            f"Another package named benchmarks is imported ({loaded.__file__}), so kdlab cannot "
            "import its own. Call kdlab from a shell or a fresh kernel."
        )
    return import_module(name)
