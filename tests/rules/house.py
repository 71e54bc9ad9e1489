"""Facts about the source of kdlab/ and benchmarks/: lines, functions, imports, names.

`budgets.toml` limits them and `make house` prints them into the docs.
"""

import ast
import re
import tomllib
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parents[2]
KDLAB = ROOT / "kdlab"
BESIDE = ROOT / "benchmarks"  # a room that no wheel has
FILES = sorted([*KDLAB.rglob("*.py"), *BESIDE.rglob("*.py")])
LONG_FILE, LONG_FUNCTION = 400, 60
LOOSE = re.compile(r"\b(?:dict|Mapping)\[\s*str,\s*(?:Any|object)\s*\]")
# These two only import: they count with the files that do the work.
COUNTED_WITH = {"__init__.py": "session.py", "__main__.py": "cli.py"}


@cache
def text(path):
    return path.read_text()


@cache
def tree(path):
    return ast.parse(text(path))


def place(path):
    return path.relative_to(ROOT).as_posix()


def lines(path):
    """Count lines as `wc -l` does: code, comments, docstrings and empty lines."""
    return text(path).count("\n")


def module(path):
    """The name by which it is imported; a package's is that of its folder."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module(path): path for path in FILES}


def room(path):
    """Folder directly under kdlab/, or file there; benchmarks/ is one."""
    if path.is_relative_to(BESIDE):
        return BESIDE.name
    first = path.relative_to(KDLAB).parts[0]
    return COUNTED_WITH.get(first, first)


def rooms():
    """Lines of Python of each room."""
    counted = {}
    for path in FILES:
        counted[room(path)] = counted.get(room(path), 0) + lines(path)
    return counted


def long_files():
    return {place(p): lines(p) for p in FILES if lines(p) > LONG_FILE}


def long_functions():
    """Lines from `def` to the last one, by `FILE::Class.name` of the function."""
    return {
        f"{place(path)}::{name}": length
        for path in FILES
        for name, node in functions(tree(path))
        if (length := node.end_lineno - node.lineno + 1) > LONG_FUNCTION
    }


def functions(node, outer=""):
    for child in inner(node):
        name = outer
        if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            name = f"{outer}.{child.name}".lstrip(".")
            if not isinstance(child, ast.ClassDef):
                yield name, child
        yield from functions(child, name)


def inner(node):
    """Statements directly in it: the only nodes where imports and definitions are."""
    for part in ("body", "handlers", "orelse", "finalbody", "cases"):
        yield from getattr(node, part, ())


def statements(node, *, types=True):
    """A node and all statements in it; without `types`, none under `TYPE_CHECKING`."""
    todo = [node]
    while todo:
        child = todo.pop()
        if types or not (
            isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)
        ):
            yield child
            todo += inner(child)


def loose_mappings():
    """Annotations that promise nothing: `dict` or `Mapping` of `str` to `Any` or `object`."""
    return sum(len(LOOSE.findall(text(path))) for path in FILES)


def imported(node, *, types=True):
    """Our modules that a node imports, also in functions and under `TYPE_CHECKING`."""
    modules = set()
    for child in statements(node, types=types):
        if isinstance(child, ast.Import):
            modules |= {name.name for name in child.names}
        elif isinstance(child, ast.ImportFrom) and child.module:
            for name in child.names:
                full_name = f"{child.module}.{name.name}"
                modules.add(full_name if full_name in MODULES else child.module)
    return modules & MODULES.keys()


def circles(*, types=True):
    """Modules that import each other, as sorted lists."""
    graph = {name: imported(tree(path), types=types) for name, path in MODULES.items()}
    return circles_of(graph)


def circles_of(graph):
    """Find the circles in a graph of modules and what each imports."""
    cycles = []
    while (module := _in_a_circle(graph)) is not None:
        importers = {name: {n for n in graph if name in graph[n]} for name in graph}
        circle = _reached(graph, module) & _reached(importers, module)
        cycles.append(sorted(circle))
        graph = {n: others - circle for n, others in graph.items() if n not in circle}
    return sorted(cycles)


def _in_a_circle(graph):
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as circle:
        return circle.args[1][0]
    return None


def _reached(graph, start):
    seen, todo = set(), [start]
    while todo:
        name = todo.pop()
        if name not in seen:
            seen.add(name)
            todo += graph[name]
    return seen


def named_twice():
    """Names of classes and type aliases that stand in several places."""
    places = {}
    for path in FILES:
        for name in [*_classes(tree(path)), *aliases(tree(path))]:
            places.setdefault(name, []).append(place(path))
    return {name: where for name, where in sorted(places.items()) if len(where) > 1}


def _classes(node):
    return [child.name for child in statements(node) if isinstance(child, ast.ClassDef)]


def aliases(node):
    """`Points = Sequence[float]`, `Event = Started | Ended`, `type X = …`, `X: TypeAlias = …`.

    Their names are written as those of classes are; a value's is not.
    """
    for child in node.body:
        if isinstance(child, ast.Assign):
            targets, typed = (
                child.targets,
                isinstance(child.value, ast.Subscript | ast.BinOp),
            )
        elif isinstance(child, ast.AnnAssign):
            targets, typed = [child.target], "TypeAlias" in ast.unparse(child.annotation)
        elif type(child).__name__ == "TypeAlias":  # Python 3.12
            targets, typed = [child.name], True
        else:
            continue
        for target in targets:
            if typed and re.fullmatch(r"_?[A-Z][A-Za-z]*[a-z]\w*", ast.unparse(target)):
                yield ast.unparse(target)


def layers():
    """Rooms from the top down, as import-linter has them; rooms of a line are side by side.

    The first line there is benchmarks/ alone, and is left out.
    """
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    rows, *_ = (c["layers"] for c in contracts["contracts"] if c["type"] == "layers")
    above, *layered = (
        [name.removeprefix("kdlab.") for name in line.split(" | ")] for line in rows
    )
    assert above == [BESIDE.name]
    return layered


def home(name):
    """Folder or file of a room, or in it."""
    return (ROOT if Path(name).parts[:1] == (BESIDE.name,) else KDLAB) / name


def about(name):
    """First line of what a room, or a folder in it, says of itself."""
    path = home(name) / "__init__.py"
    path = path if path.exists() else home(f"{name}.py")
    return ast.get_docstring(tree(path)).splitlines()[0]


def folders(name):
    """Packages in a room, and in those."""
    paths = sorted(home(name).rglob("*/__init__.py"))
    return [path.parent.relative_to(home(name)).as_posix() for path in paths]
