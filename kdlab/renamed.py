"""Public names of the version before, which warn and name the new one.

__getattr__ = renamed(__name__, {"Level": "BufferState"})
"""

import sys
import warnings
from collections.abc import Callable, Mapping
from typing import Any


def warn_renamed(old: str, new: str) -> None:
    """Warn the caller of whoever answers for an old name, and name the new one."""
    message = f"{old} is called {new} now; the old name goes with version 0.4."
    warnings.warn(message, DeprecationWarning, stacklevel=3)


def renamed(module: str, names: Mapping[str, str]) -> Callable[[str], Any]:
    """A module's `__getattr__` that answers for old names, with a DeprecationWarning.

    Args:
        module: the module's `__name__`.
        names: the new name of each old one; both are of this module.
    """

    def __getattr__(name: str) -> Any:
        new = names.get(name)
        if new is None:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        warn_renamed(f"{module}.{name}", new)
        return getattr(sys.modules[module], new)

    return __getattr__
