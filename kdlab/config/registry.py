"""Register and find components by name.

The name is the path: `losses/hinton` is kdlab/losses/hinton.py, `methods/student` the folder
kdlab/methods/student.

Closed: a name reaches kdlab's own component rooms, an installed entry point of the
group `kdlab.components`, or a component registered in this process (a notebook cell).
No YAML can name an import path.

A name that ends in `/*` is a family: `timm/*` serves every `timm/<variant>` and gets
the rest of the name as its field `variant`.
"""

import linecache
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any, TypeVar

from kdlab.config import evidence, source_index
from kdlab.config.folders import is_path, nearest, no_path
from kdlab.config.spec import Spec
from kdlab.errors import NotFoundError

SpecClass = TypeVar("SpecClass", bound=type[Spec])


@dataclass(frozen=True, slots=True)
class Registered:
    cls: type[Spec]
    module: str
    file: str  # source file, or the notebook cell's name


_registered: dict[str, Registered] = {}
_RENAMED = {  # names of version 0.1
    "train/student": "methods/student",
    "train/blockwise": "methods/blockwise",
    "train/ensemble": "methods/ensemble",
}


def register(name: str) -> Callable[[SpecClass], SpecClass]:
    """Class decorator: make a spec available as `type: name`.

    Raises:
        ValueError: the name is taken by another class. Re-running the notebook cell
            that defined a component replaces it; kdlab's own cannot be replaced.
    """

    def decorate(cls: SpecClass) -> SpecClass:
        file = sys._getframe(1).f_code.co_filename
        before = _registered.get(name)
        taken = before and before.module != cls.__module__
        module = cls.__module__
        shadows = not module.startswith("kdlab.") and module != _modules().get(name, module)
        if taken or shadows:
            owner = before.file if before else "kdlab"
            raise ValueError(
                f"component {name!r} is already registered by {owner}; choose another name"
            )
        cls.component = name
        _registered[name] = Registered(cls, cls.__module__, file)
        return cls

    return decorate


def kdlab_names() -> frozenset[str]:
    return frozenset(_modules())


@cache
def _modules() -> dict[str, str]:
    """Return the modules of kdlab's components, by component name."""
    return {entry.name: entry.module for entry in source_index.index()}


@cache
def _entry_points() -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group="kdlab.components")}


def known_names() -> list[str]:
    return sorted({*kdlab_names(), *_entry_points(), *_registered})


def in_rooms(name: str) -> list[str]:
    """Return components by the last part of their name: `served` gives `cluster/served`."""
    return [] if "/" in name else [k for k in known_names() if k.endswith(f"/{name}")]


def find(name: str, among: Sequence[str] = ()) -> tuple[type[Spec], str | None]:
    """Return the class registered under a name and, for a family, the variant.

    Args:
        name: name of a component, or of a member of a family.
        among: names to suggest where `name` is unknown; all known names where empty.

    Raises:
        NotFoundError: no such component; lists the nearest names.
    """
    family, _, variant = name.partition("/")
    for candidate, rest in ((name, None), (f"{family}/*", variant)):
        cls = _load(candidate)
        if cls is not None and (rest is None or rest):
            return cls, rest
    if name in _RENAMED:
        raise NotFoundError(f"{name!r} is called {_RENAMED[name]!r} since version 0.2.")
    raise NotFoundError(_no_component(name, among))


def absent(name: str) -> str | None:
    """Return the message for a name that cannot exist, without an import; else None.

    A plain name may be a model of timm, and an existing path may be anything: both give None.
    """
    room = name.partition("/")[0]
    known = {*known_names(), *_RENAMED}
    if (
        known & {name, f"{room}/*"}
        or "://" in name
        or os.path.exists(os.path.expanduser(name))
    ):
        return None
    if room in source_index.ROOMS and room != name:
        return _no_component(name, [k for k in known if k.startswith(f"{room}/")])
    return no_path(name) if is_path(name) or room != name else None


def _no_component(name: str, among: Sequence[str]) -> str:
    return (
        f"there is no component named {name!r}.{_near(name, among)} "
        "Names are registered components, never import paths."
    )


def _near(name: str, among: Sequence[str]) -> str:
    """Suggest names similar to this one: among those wanted, else among all."""
    any_kind = nearest(name, known_names())
    suggestion = nearest(name, among) if among else any_kind
    return any_kind if "Nearest" in any_kind and "Nearest" not in suggestion else suggestion


def _load(name: str) -> type[Spec] | None:
    if name in _registered:
        return _registered[name].cls
    if (module := _modules().get(name)) is not None:
        load = import_module if module.startswith("kdlab.") else evidence.module
        load(module)
        return _registered[name].cls
    if name in _entry_points():
        point = _entry_points()[name]
        cls = point.load()
        if not (isinstance(cls, type) and issubclass(cls, Spec)):
            raise NotFoundError(
                f"entry point {name!r} ({point.value}) is not a kdlab Spec class"
            )
        cls.component = name
        _registered[name] = Registered(cls, cls.__module__, point.value)
        return cls
    return None


def component_names(tree: Any) -> set[str]:
    """Return the names of all components in a resolved tree."""
    if isinstance(tree, dict):
        names = {tree["type"]} if isinstance(tree.get("type"), str) else set()
        return names.union(*(component_names(v) for v in tree.values()))
    if isinstance(tree, list):
        return set().union(*(component_names(v) for v in tree))
    return set()


def cell_source(name: str) -> str | None:
    """Return the source of a component defined in a notebook cell or script; None for others.

    Other processes import components of kdlab and of installed packages; those of
    `__main__`, also when another process sent them, are sent as source.
    """
    entry = _registered.get(name)
    if entry is None or not entry.module.startswith(("__main__", "kdlab_cell_")):
        return None
    return "".join(linecache.getlines(entry.file)) or None
