"""Which keys a spec has, read from source text; importing none of them.

A mistyped key of an override must be said at once, and most components need torch to be imported.
What cannot be told from the text is left to the full check (check.py).
"""

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from kdlab.config import source_index
from kdlab.config.check import no_such_key
from kdlab.config.load import Composed
from kdlab.config.registry import absent
from kdlab.config.removed import unset
from kdlab.config.yaml_text import dotted
from kdlab.errors import Fault

_PACKAGE = Path(__file__).resolve().parent.parent.parent
_OWN = ("kdlab.", "benchmarks.")
_WITHOUT_FIELDS = {"ABC", "Protocol", "Generic"}


@dataclass(frozen=True, slots=True)
class Shape:
    """The fields of a spec class, and those of them that are specs by themselves."""

    keys: tuple[str, ...]
    nested: Mapping[str, tuple[str, str]] = field(default_factory=dict)  # module, class
    kind: bool = False  # of components, which one of them must fill


def unknown_keys(tree: Composed, module: str, name: str) -> list[Fault]:
    """Keys that no spec of this tree has, and names that nothing has: a part of all faults.

    Args:
        tree: resolved, without faults so far.
        module: of the class that the whole tree is checked as.
        name: of that class.
    """
    found = list(_unknown(tree, tree.data, shape(module, name), "", ""))
    return [Fault(key, message, tree.origin(key)) for key, message in found]


def _unknown(
    tree: Composed, data: Mapping[str, Any], own: Shape | None, label: str, key: str
) -> Iterator[tuple[str, str]]:
    if own is None or key in tree.broken:
        return
    deeper = {k: of for k, v in data.items() if (of := _inside(own, k, v)) is not None}
    for name, value in data.items():
        chosen = value.get("type") if isinstance(value, dict) else None
        if name in own.nested and isinstance(chosen, str) and (why := absent(chosen)):
            yield dotted(key, f"{name}.type"), why
        if name not in ("type", *own.keys) and not unset(dotted(key, name), value):
            parts = [
                f"{part}.{name}" for part, (of, _) in deeper.items() if name in of.keys
            ]
            yield dotted(key, name), no_such_key(label, key, name, parts, own.keys)
    for name, (inside, component) in deeper.items():
        if inside.kind and "type" not in data[name]:
            continue  # the full check lists what it can be
        yield from _unknown(tree, data[name], inside, component, dotted(key, name))


def _inside(own: Shape, name: str, value: Any) -> tuple[Shape, str] | None:
    """Shape of a value that is a block, and the component that it names; None if not known."""
    if not isinstance(value, dict):
        return None
    chosen = value.get("type")
    if isinstance(chosen, str):
        found = component_shape(chosen)
        return None if found is None else (found, chosen)
    found = shape(*own.nested[name]) if name in own.nested else None
    return None if found is None else (found, "")


def component_shape(name: str) -> Shape | None:
    """Fields of a component of kdlab's own; None for any other."""
    entry = source_index.entry_of(name)
    return None if entry is None else shape(entry.module, entry.cls)


@cache
def shape(module: str, name: str) -> Shape | None:
    """Fields of a class by name, its bases' fields first; None where a base is not kdlab's own."""
    tree = _source(module)
    node = next(
        (n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == name), None
    )
    imported = _imported(tree)
    if node is None:  # a package gives it on
        return shape(*imported[name]) if name in imported else None
    keys, nested = dict[str, None](), dict[str, tuple[str, str]]()
    for base in node.bases:
        if not isinstance(base, ast.Name):
            return None
        if base.id in _WITHOUT_FIELDS:
            continue
        inherited = shape(*imported.get(base.id, (module, base.id)))
        if inherited is None:
            return None
        keys |= dict.fromkeys(inherited.keys)
        nested |= inherited.nested
    for line in node.body:
        if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name):
            if "ClassVar" in ast.unparse(line.annotation):
                continue
            keys[line.target.id] = None
            named = _class_of(line.annotation)
            if named is not None:
                nested[line.target.id] = imported.get(named, (module, named))
    kind = any(isinstance(base, ast.Name) and base.id == "ABC" for base in node.bases)
    return Shape(tuple(keys), nested, kind)


def _class_of(annotation: ast.expr) -> str | None:
    """`Recipe` of `Recipe` and of `Recipe | None`."""
    match annotation:
        case ast.Name(id=name):
            return name
        case ast.BinOp(left=ast.Name(id=name), right=ast.Constant(value=None)):
            return name
    return None


def _imported(tree: ast.Module) -> dict[str, tuple[str, str]]:
    """Names from kdlab's own modules: module and class."""
    return {
        alias.asname or alias.name: (node.module, alias.name)
        for node in tree.body
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(_OWN)
        for alias in node.names
        if node.module is not None
    }


@cache
def _source(module: str) -> ast.Module:
    """Syntax tree of a module or package of ours; empty where it is none."""
    place = _PACKAGE.joinpath(*module.split("."))
    path = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
    if not module.startswith(_OWN) or not path.is_file():
        return ast.Module([], [])
    return ast.parse(path.read_text(encoding="utf-8"))
