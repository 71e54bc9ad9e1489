"""Heavy libraries, each imported when something of it is first asked for.

    timm = lazy("timm")

Where types are wanted the import stands under `TYPE_CHECKING`, and this under its `else`.
"""

from importlib import import_module
from typing import Any


class _LazyModule:
    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        if name == "_name":  # of a copy that is being made
            raise AttributeError(name)
        return getattr(import_module(self._name), name)


def lazy(name: str) -> Any:
    """A stand-in for a module, which is imported when an attribute of it is asked for."""
    return _LazyModule(name)
