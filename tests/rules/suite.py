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
    """All of them, by name."""
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
            own, _ = _marks(child.decorator_list, known)
            yield from _cases(child, f"{name}::{child.name}", marks + own, known)
        elif isinstance(child, ast.FunctionDef) and child.name.startswith("test"):
            own, some = _marks(child.decorator_list, known)
            for values in _values_of_fixtures(child, known):
                each = [_inner_marks([value], known) for value in values]
                some += tuple(mark for marks_of_one in each for mark in marks_of_one)
                if all(each):  # so is the test, at least as the first value is
                    own += tuple(each[0])
            yield Case(f"{name}::{child.name}", child, marks + own, some)


def _values_of_fixtures(test, known):
    """Values of each fixture that it takes, where there are several."""
    for argument in test.args.args:
        for made in getattr(known.get(argument.arg), "decorator_list", ()):
            for keyword in getattr(made, "keywords", ()):
                if keyword.arg == "params" and isinstance(keyword.value, ast.List):
                    yield keyword.value.elts


def _file_marks(node, known):
    for child in node.body:
        if isinstance(child, ast.Assign) and ast.unparse(child.targets[0]) == "pytestmark":
            yield from _marks([child.value], known)[0]


def _marks(expressions, known):
    """Those of the whole test, and those of single values of its parameters."""
    whole, some = [], []
    for expression in expressions:
        mark = getattr(known.get(getattr(expression, "id", None)), "value", expression)
        if isinstance(mark, ast.List | ast.Tuple):
            whole += _marks(mark.elts, known)[0]
        elif name := _mark(mark):
            whole.append(Mark(name, _reason(mark)))
            some += _inner_marks(getattr(mark, "args", ()), known)
    return tuple(whole), tuple(some)


def _mark(node):
    """Its name, where it is a mark."""
    called = ast.unparse(node.func if isinstance(node, ast.Call) else node)
    return (
        called.removeprefix("pytest.mark.") if called.startswith("pytest.mark.") else None
    )


def _inner_marks(nodes, known):
    """Marks in these, and in what this file defines and they name: a list, a function."""
    found, todo, seen = {}, [inner for node in nodes for inner in ast.walk(node)], set()
    while todo:
        node = todo.pop()
        if isinstance(node, ast.Name) and node.id in known and node.id not in seen:
            seen.add(node.id)
            todo += ast.walk(known[node.id])
        elif isinstance(node, ast.Call | ast.Attribute) and (name := _mark(node)):
            found[name] = found.get(name) or _reason(node)
    return [Mark(*item) for item in found.items()]


def _reason(mark):
    """Its first argument, where that is text."""
    first = getattr(next(iter(getattr(mark, "args", ())), None), "value", None)
    return first.strip() if isinstance(first, str) else ""


@cache
def in_unit_tests():
    """Our modules that unit tests import, or fixtures, or what either of them calls.

    What the head of a file imports counts where something that is no whole test uses it. What
    tests share in files of their own counts by what is used of it.
    """
    found, seen = set(), set()
    for path in FILES:
        if "gpu" in path.relative_to(ROOT / "tests").parts:
            continue
        here = cases_of(path)
        whole = [case.node for case in here if case.has(*WHOLE)]
        if len(whole) < len(here):
            roots = [n for n in tree(path).body if n not in whole and not _is_import(n)]
            found |= _needed(path, roots, seen)
    return found


def _needed(path, roots, seen):
    """Our modules that these nodes of a file need, and what they call in files of tests."""
    found, todo, bound = set(), list(roots), _bound(path)
    while todo:
        node = todo.pop()
        if node in seen:
            continue
        seen.add(node)
        found |= imported(node)
        names = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
        todo += [bound[name] for name in names & bound.keys()]
        for shared, name in _shared(node):
            found |= _needed(shared, [_bound(shared)[name]], seen)
        for fixture in {n.arg for n in ast.walk(node) if isinstance(n, ast.arg)}:
            for shared in _conftests(path):
                if fixture in _bound(shared):
                    found |= _needed(shared, [_bound(shared)[fixture]], seen)
            todo += [bound[fixture]] if fixture in bound else []
    return found


@cache
def _bound(path):
    """What each name at the top of a file stands for: a definition, or one name's import."""
    found = {}
    for node in tree(path).body:
        if _is_import(node):
            for name in node.names:
                found[(name.asname or name.name).split(".")[0]] = _only(node, name)
        elif isinstance(node, ast.Assign):
            for target in node.targets:
                found |= {n.id: node for n in ast.walk(target) if isinstance(n, ast.Name)}
        elif hasattr(node, "name"):
            found[node.name] = node
    return found


def _is_import(node):
    return isinstance(node, ast.Import | ast.ImportFrom)


def _only(node, name):
    if isinstance(node, ast.Import):
        return ast.Import(names=[name])
    return ast.ImportFrom(module=node.module, names=[name], level=node.level)


def _shared(node):
    """What it imports from files of tests: file and name."""
    for child in statements(node):
        if isinstance(child, ast.ImportFrom) and child.module in _files_of_tests():
            path = _files_of_tests()[child.module]
            yield from ((path, n.name) for n in child.names if n.name in _bound(path))
        elif isinstance(child, ast.Import):
            for path in (_files_of_tests().get(name.name) for name in child.names):
                yield from ((path, name) for name in (_bound(path) if path else ()))


@cache
def _files_of_tests():
    """By the names that tests import them by."""
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
