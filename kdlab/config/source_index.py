"""Names and fields of components, read from their source without importing them.

`kdlab list` and the message for a mistyped key must be fast, and most components import torch.
The full check (check.py) handles what the source does not show.
"""

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from kdlab.config import evidence

_ROOT = Path(__file__).resolve().parent.parent.parent
ROOMS = (
    *("losses", "features", "models", "data", "soft_labels"),
    *("methods", "train", "cluster", "simulate", "reproduce"),
)
_WITHOUT_FIELDS = ("ABC", "Protocol", "Generic")


@dataclass(frozen=True, slots=True)
class IndexEntry:
    name: str  # "losses/hinton", or "timm/*" for a family
    module: str  # "kdlab.losses.hinton", or "benchmarks.reproduce.table" of a checkout
    cls: str  # "Hinton"
    doc: str  # first line of the docstring

    @property
    def kind(self) -> str:
        return self.module.split(".")[1]


@dataclass(frozen=True, slots=True)
class Shape:
    """Fields of a spec class, and the classes of those that are specs."""

    keys: tuple[str, ...]
    nested: Mapping[str, tuple[str, str]] = field(default_factory=dict)  # module, class
    kind: bool = False  # abstract: YAML needs `type:`


@cache
def index() -> tuple[IndexEntry, ...]:
    entries: list[IndexEntry] = []
    benchmarks = evidence.folder()
    for room in ROOMS:
        parent = benchmarks if room == "reproduce" and benchmarks else _ROOT / "kdlab"
        for path in (parent / room).rglob("*.py"):
            if "@register(" in (text := path.read_text(encoding="utf-8")):
                module = ".".join(path.relative_to(_ROOT).with_suffix("").parts)
                entries += _entries(module, text)
    return tuple(sorted(entries, key=lambda entry: entry.name))


def entry_of(name: str) -> IndexEntry | None:
    """Return the entry of a kdlab component, or of its family; None for any other name."""
    family = f"{name.partition('/')[0]}/*"
    return next((entry for entry in index() if entry.name in (name, family)), None)


def _entries(module: str, text: str) -> Iterator[IndexEntry]:
    for name, node in _parsed(text)[0].items():
        for decorator in node.decorator_list:
            match decorator:
                case ast.Call(
                    func=ast.Name(id="register"), args=[ast.Constant(value=component)]
                ):
                    doc = (ast.get_docstring(node) or "").split("\n", 1)[0]
                    yield IndexEntry(str(component), module, name, doc)


def component_shape(name: str) -> Shape | None:
    """Return the fields of a kdlab component; None for any other name."""
    entry = entry_of(name)
    return None if entry is None else shape(entry.module, entry.cls)


@cache
def shape(module: str, name: str) -> Shape | None:
    """Return the fields of a class, bases first; None where a base is not part of kdlab."""
    classes, imported = _source(module)
    if name not in classes:  # re-exported by a package
        return shape(*imported[name]) if name in imported else None
    keys, nested = dict[str, None](), dict[str, tuple[str, str]]()
    bases = [base.id if isinstance(base, ast.Name) else "" for base in classes[name].bases]
    for base in bases:
        if base in _WITHOUT_FIELDS:
            continue
        inherited = shape(*imported.get(base, (module, base)))
        if inherited is None:
            return None
        keys |= dict.fromkeys(inherited.keys)
        nested |= inherited.nested
    for line in classes[name].body:
        match line:
            case ast.AnnAssign(target=ast.Name(id=key), annotation=hint):
                if "ClassVar" in ast.unparse(hint):
                    continue
                keys[key] = None
                match hint:  # `Recipe` and `Recipe | None`
                    case (
                        ast.Name(id=cls)
                        | ast.BinOp(left=ast.Name(id=cls), right=ast.Constant(value=None))
                    ):
                        nested[key] = imported.get(cls, (module, cls))
    return Shape(tuple(keys), nested, "ABC" in bases)


Parsed = tuple[dict[str, ast.ClassDef], dict[str, tuple[str, str]]]


@cache
def _source(module: str) -> Parsed:
    """Parse a module of kdlab or benchmarks; empty for any other."""
    place = _ROOT.joinpath(*module.split("."))
    path = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
    if not module.startswith(("kdlab.", "benchmarks.")) or not path.is_file():
        return {}, {}
    return _parsed(path.read_text(encoding="utf-8"))


def _parsed(text: str) -> Parsed:
    """Return a source's classes, and its imports as module and name."""
    classes, imported = dict[str, ast.ClassDef](), dict[str, tuple[str, str]]()
    for node in ast.parse(text).body:
        if isinstance(node, ast.ClassDef):
            classes[node.name] = node
        elif isinstance(node, ast.ImportFrom) and node.module:
            imported |= {a.asname or a.name: (node.module, a.name) for a in node.names}
    return classes, imported
