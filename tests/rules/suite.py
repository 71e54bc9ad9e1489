"""The tests, read from their source: names, marks with their reasons, and what they import."""

import ast
from dataclasses import dataclass
from functools import cache

from rules.house import MODULES, ROOT, imported, place, tree

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
    module = tree(path)
    known = {
        target.id: node.value
        for node in module.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    return list(_cases(module, place(path), (), known))


def _cases(node, name, marks, known):
    marks += tuple(_file_marks(node, known))
    for child in node.body:
        if isinstance(child, ast.ClassDef) and child.name.startswith("Test"):
            own, _ = _marks(child.decorator_list, known)
            yield from _cases(child, f"{name}::{child.name}", marks + own, known)
        elif isinstance(child, ast.FunctionDef) and child.name.startswith("test"):
            own, some = _marks(child.decorator_list, known)
            yield Case(f"{name}::{child.name}", child, marks + own, some)


def _file_marks(node, known):
    for child in node.body:
        if isinstance(child, ast.Assign) and ast.unparse(child.targets[0]) == "pytestmark":
            yield from _marks([child.value], known)[0]


def _marks(expressions, known):
    """Those of the whole test, and those of single values of its parameters."""
    whole, some = [], []
    for expression in expressions:
        mark = known.get(getattr(expression, "id", None), expression)
        if isinstance(mark, ast.List | ast.Tuple):
            whole += _marks(mark.elts, known)[0]
            continue
        called = ast.unparse(mark.func if isinstance(mark, ast.Call) else mark)
        if called.startswith("pytest.mark."):
            whole.append(Mark(called.removeprefix("pytest.mark."), _reason(mark)))
        for inner in ast.walk(mark):
            if isinstance(inner, ast.keyword) and inner.arg == "marks":
                some += _marks([inner.value], known)[0]
    return tuple(whole), tuple(some)


def _reason(mark):
    """Its first argument, where that is text."""
    first = getattr(next(iter(getattr(mark, "args", ())), None), "value", None)
    return first.strip() if isinstance(first, str) else ""


@cache
def in_unit_tests():
    """Modules of kdlab that a unit test imports: it, its file or a function that is no test.

    What the head of a file imports counts where something that is no whole test uses it.
    """
    found = set()
    for path in FILES:
        if "gpu" in path.relative_to(ROOT / "tests").parts:
            continue
        here = cases_of(path)
        whole = [case.node for case in here if case.has(*WHOLE)]
        if len(whole) == len(here):
            continue
        found |= _imported_outside(tree(path), whole)
    return found


def _imported_outside(module, left_out):
    outside = [n for n in module.body if n not in left_out]
    used = {
        inner.id
        for node in outside
        for inner in ast.walk(node)
        if isinstance(inner, ast.Name)
    }
    found = set()
    for node in outside:
        if isinstance(node, ast.ImportFrom | ast.Import):
            for name in node.names:
                bound = (name.asname or name.name).split(".")[0]
                if bound in used:
                    found |= imported(_only(node, name))
        else:
            found |= imported(node)
    return found


def _only(node, name):
    if isinstance(node, ast.Import):
        return ast.Import(names=[name])
    return ast.ImportFrom(module=node.module, names=[name], level=node.level)


def untested(rooms):
    """Modules of these rooms (or top-level modules) that no unit test imports."""
    return sorted(
        name
        for name, path in MODULES.items()
        if name.split(".")[1:2]
        and name.split(".")[1] in rooms
        and path.name != "__init__.py"
        if name not in in_unit_tests()
    )
