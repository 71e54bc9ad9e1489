"""The tests, read from their source: names, marks with their reasons, and what they import."""

import ast
from dataclasses import dataclass
from functools import cache

from rules.house import MODULES, ROOT, imported, place, statements, tree

WHOLE = {"processes", "slow", "nightly", "gpu"}  # a test without these is a unit test
FILES = sorted((ROOT / "tests").rglob("test_*.py"))


@dataclass(frozen=True)
class Mark:
    name: str
    reason: str = ""


@dataclass(frozen=True)
class Case:
    """A test function. Each mark of `always` is its own, its class's or its file's."""

    name: str  # as pytest says it, without parameters
    node: ast.FunctionDef
    always: tuple[Mark, ...]
    for_some: tuple[Mark, ...]  # of single values of its parameters

    def has(self, *names):
        return any(mark.name in names for mark in self.always)

    def reasons(self):
        return [
            mark.reason
            for mark in (*self.always, *self.for_some)
            if mark.name in WHOLE and mark.reason
        ]


@cache
def cases():
    """All test functions, by name."""
    return {case.name: case for path in FILES for case in cases_of(path)}


@cache
def cases_of(path):
    shared = [_bound(conftest) for conftest in reversed(_conftests(path))]
    known = {
        name: node for bound in (*shared, _bound(path)) for name, node in bound.items()
    }
    return list(_cases(tree(path), place(path), (), known))


def _cases(node, name, marks, known):
    marks += tuple(_file_marks(node, known))
    for child in node.body:
        if isinstance(child, ast.ClassDef) and child.name.startswith("Test"):
            always, _ = _marks(child.decorator_list, known)
            yield from _cases(child, f"{name}::{child.name}", marks + always, known)
        elif isinstance(child, ast.FunctionDef) and child.name.startswith("test"):
            always, some = _marks(child.decorator_list, known)
            for values in _values_of_fixtures(child, known):
                each = [_inner_marks([value], known) for value in values]
                some += tuple(mark for marks_of_one in each for mark in marks_of_one)
                if all(each):  # so is the test, at least as the first value is
                    always += tuple(each[0])
            yield Case(f"{name}::{child.name}", child, marks + always, some)


def _values_of_fixtures(test, known):
    """Values of each fixture with `params` that a test takes."""
    for argument in test.args.args:
        for decorator in getattr(known.get(argument.arg), "decorator_list", ()):
            for keyword in getattr(decorator, "keywords", ()):
                if keyword.arg == "params" and isinstance(keyword.value, ast.List):
                    yield keyword.value.elts


def _file_marks(node, known):
    for child in node.body:
        if isinstance(child, ast.Assign) and ast.unparse(child.targets[0]) == "pytestmark":
            yield from _marks([child.value], known)[0]


def _marks(expressions, known):
    """Marks of the test itself, and marks of single values of its parameters."""
    always, some = [], []
    for expression in expressions:
        mark = getattr(known.get(getattr(expression, "id", None)), "value", expression)
        if isinstance(mark, ast.List | ast.Tuple):
            always += _marks(mark.elts, known)[0]
        elif name := _mark(mark):
            always.append(Mark(name, _reason(mark)))
            some += _inner_marks(getattr(mark, "args", ()), known)
    return tuple(always), tuple(some)


def _mark(node):
    """Its name, where it is a mark."""
    called = ast.unparse(node.func if isinstance(node, ast.Call) else node)
    return (
        called.removeprefix("pytest.mark.") if called.startswith("pytest.mark.") else None
    )


def _inner_marks(nodes, known):
    """Marks in these nodes, and in the lists and functions of the file that they name."""
    reasons, todo, seen = {}, [inner for node in nodes for inner in ast.walk(node)], set()
    while todo:
        node = todo.pop()
        if isinstance(node, ast.Name) and node.id in known and node.id not in seen:
            seen.add(node.id)
            todo += ast.walk(known[node.id])
        elif isinstance(node, ast.Call | ast.Attribute) and (name := _mark(node)):
            reasons[name] = reasons.get(name) or _reason(node)
    return [Mark(*item) for item in reasons.items()]


def _reason(mark):
    """Its first argument, where that is text."""
    first = getattr(next(iter(getattr(mark, "args", ())), None), "value", None)
    return first.strip() if isinstance(first, str) else ""


@cache
def in_unit_tests():
    """Our modules that unit tests import, or their fixtures, or functions that these call.

    An import at the head of a file counts if something other than a whole test uses it. Of
    modules that tests share, only the functions that are used count.
    """
    modules, seen = set(), set()
    for path in FILES:
        if "gpu" in path.relative_to(ROOT / "tests").parts:
            continue
        in_file = cases_of(path)
        skipped = [case.node for case in in_file if case.has(*WHOLE)]
        if len(skipped) < len(in_file):
            roots = [n for n in tree(path).body if n not in skipped and not _is_import(n)]
            modules |= _needed(path, roots, seen)
    return modules


def _needed(path, roots, seen):
    """Our modules that these nodes of a file need, and what they call in files of tests."""
    modules, todo, bound = set(), list(roots), _bound(path)
    while todo:
        node = todo.pop()
        if node in seen:
            continue
        seen.add(node)
        modules |= imported(node)
        names = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
        todo += [bound[name] for name in names & bound.keys()]
        for shared, name in _shared(node):
            modules |= _needed(shared, [_bound(shared)[name]], seen)
        for fixture in {n.arg for n in ast.walk(node) if isinstance(n, ast.arg)}:
            for shared in _conftests(path):
                if fixture in _bound(shared):
                    modules |= _needed(shared, [_bound(shared)[fixture]], seen)
            todo += [bound[fixture]] if fixture in bound else []
    return modules


@cache
def _bound(path):
    """Map names at the top of a file to their definition, or to the import of that name."""
    bound = {}
    for node in tree(path).body:
        if _is_import(node):
            for name in node.names:
                bound[(name.asname or name.name).split(".")[0]] = _only(node, name)
        elif isinstance(node, ast.Assign):
            for target in node.targets:
                bound |= {n.id: node for n in ast.walk(target) if isinstance(n, ast.Name)}
        elif hasattr(node, "name"):
            bound[node.name] = node
    return bound


def _is_import(node):
    return isinstance(node, ast.Import | ast.ImportFrom)


def _only(node, name):
    if isinstance(node, ast.Import):
        return ast.Import(names=[name])
    return ast.ImportFrom(module=node.module, names=[name], level=node.level)


def _shared(node):
    """Names that a node imports from files of tests, each with its file."""
    for child in statements(node):
        if isinstance(child, ast.ImportFrom) and child.module in _files_of_tests():
            path = _files_of_tests()[child.module]
            yield from ((path, n.name) for n in child.names if n.name in _bound(path))
        elif isinstance(child, ast.Import):
            for path in (_files_of_tests().get(name.name) for name in child.names):
                yield from ((path, name) for name in (_bound(path) if path else ()))


@cache
def _files_of_tests():
    """Modules that tests share, by the name of their import."""
    return {
        p.stem: p for p in (ROOT / "tests").rglob("*.py") if not p.stem.startswith("test_")
    }


def _conftests(path):
    above = [folder / "conftest.py" for folder in path.parents]
    return [p for p in above if p.is_relative_to(ROOT / "tests") and p.exists()]


def untested(rooms):
    """Modules of these rooms (or top-level modules) that no unit test imports."""
    return sorted(
        name
        for name, path in MODULES.items()
        if name.startswith("kdlab.")
        and name.split(".")[1] in rooms
        and path.name != "__init__.py"
        if name not in in_unit_tests()
    )
