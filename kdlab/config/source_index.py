"""What components exist, read from source text; importing none of them.

`kdlab list` must answer at once, and most components need torch to be imported.
"""

import ast
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from kdlab.config import evidence

_PACKAGE = Path(__file__).resolve().parent.parent
ROOMS = (
    *("losses", "features", "models", "data", "soft_labels"),
    *("methods", "train", "cluster", "simulate", "reproduce"),
)


@dataclass(frozen=True, slots=True)
class IndexEntry:
    name: str  # "losses/hinton", or "timm/*" for a family
    module: str  # "kdlab.losses.hinton", or "benchmarks.reproduce.table" of a checkout
    cls: str  # "Hinton"
    doc: str  # first line of the docstring

    @property
    def kind(self) -> str:
        return self.module.split(".")[1]


@cache
def index() -> tuple[IndexEntry, ...]:
    found: list[IndexEntry] = []
    beside = evidence.folder()
    for room in ROOMS:
        home = beside if room == "reproduce" and beside else _PACKAGE
        for path in sorted((home / room).rglob("*.py")):
            text = path.read_text(encoding="utf-8")
            if "@register(" in text:
                found += _entries(path, text)
    return tuple(sorted(found, key=lambda entry: entry.name))


def entry_of(name: str) -> IndexEntry | None:
    """A component of kdlab's own, or the family that serves it; None for any other."""
    family = f"{name.partition('/')[0]}/*"
    return next((entry for entry in index() if entry.name in (name, family)), None)


def _entries(path: Path, text: str) -> list[IndexEntry]:
    module = ".".join(path.relative_to(_PACKAGE.parent).with_suffix("").parts)
    classes = [node for node in ast.parse(text).body if isinstance(node, ast.ClassDef)]
    return [
        IndexEntry(
            name, module, node.name, (ast.get_docstring(node) or "").split("\n", 1)[0]
        )
        for node in classes
        if (name := _registered_name(node)) is not None
    ]


def _registered_name(node: ast.ClassDef) -> str | None:
    for decorator in node.decorator_list:
        match decorator:
            case ast.Call(func=ast.Name(id="register"), args=[ast.Constant(value=str(v))]):
                return v
    return None
