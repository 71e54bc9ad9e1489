"""Lazy imports of heavy libraries: each is imported when an attribute of it is first read.

    timm = lazy("timm")

For types, put the import under `TYPE_CHECKING` and this call under its `else`.
"""

from importlib import import_module
from typing import Any


class _LazyModule:
    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        if name == "_name":  # a copy has none yet
            raise AttributeError(name)
        return getattr(import_module(self._name), name)


def lazy(name: str) -> Any:
    """Return a stand-in for a module, which is imported when an attribute is first read."""
    return _LazyModule(name)
