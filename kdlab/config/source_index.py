"""What components exist and which fields they have, from source text; importing none of them.

`kdlab list` must answer and a mistyped key be said at once, and most components need torch to be
imported. What cannot be told from the text is left to the full check (check.py).
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
    """The fields of a spec class, and those of them that are specs by themselves."""

    keys: tuple[str, ...]
    nested: Mapping[str, tuple[str, str]] = field(default_factory=dict)  # module, class
    kind: bool = False  # of components, which one of them must fill


@cache
def index() -> tuple[IndexEntry, ...]:
    found: list[IndexEntry] = []
    beside = evidence.folder()
    for room in ROOMS:
        home = beside if room == "reproduce" and beside else _ROOT / "kdlab"
        for path in (home / room).rglob("*.py"):
            if "@register(" in (text := path.read_text(encoding="utf-8")):
                module = ".".join(path.relative_to(_ROOT).with_suffix("").parts)
                found += _entries(module, text)
    return tuple(sorted(found, key=lambda entry: entry.name))


def entry_of(name: str) -> IndexEntry | None:
    """A component of kdlab's own, or the family that serves it; None for any other."""
    family = f"{name.partition('/')[0]}/*"
    return next((entry for entry in index() if entry.name in (name, family)), None)


def _entries(module: str, text: str) -> Iterator[IndexEntry]:
    for name, node in _parsed(text)[0].items():
        for decorator in node.decorator_list:
            match decorator:
                case ast.Call(
                    func=ast.Name(id="register"), args=[ast.Constant(value=said)]
                ):
                    doc = (ast.get_docstring(node) or "").split("\n", 1)[0]
                    yield IndexEntry(str(said), module, name, doc)


def component_shape(name: str) -> Shape | None:
    """Fields of a component of kdlab's own; None for any other."""
    entry = entry_of(name)
    return None if entry is None else shape(entry.module, entry.cls)


@cache
def shape(module: str, name: str) -> Shape | None:
    """Fields of a class by name, its bases' fields first; None where a base is not kdlab's own."""
    classes, imported = _source(module)
    if name not in classes:  # a package gives it on
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
                        ast.Name(id=of)
                        | ast.BinOp(left=ast.Name(id=of), right=ast.Constant(value=None))
                    ):
                        nested[key] = imported.get(of, (module, of))
    return Shape(tuple(keys), nested, "ABC" in bases)


Parsed = tuple[dict[str, ast.ClassDef], dict[str, tuple[str, str]]]


@cache
def _source(module: str) -> Parsed:
    """A module or package of ours, parsed; nothing where it is none of ours."""
    place = _ROOT.joinpath(*module.split("."))
    path = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
    if not module.startswith(("kdlab.", "benchmarks.")) or not path.is_file():
        return {}, {}
    return _parsed(path.read_text(encoding="utf-8"))


def _parsed(text: str) -> Parsed:
    """Classes of a source by name, and what it has of others: module and class."""
    classes, imported = dict[str, ast.ClassDef](), dict[str, tuple[str, str]]()
    for node in ast.parse(text).body:
        if isinstance(node, ast.ClassDef):
            classes[node.name] = node
        elif isinstance(node, ast.ImportFrom) and node.module:
            imported |= {a.asname or a.name: (node.module, a.name) for a in node.names}
    return classes, imported
