"""Names are plain: one class of a name, and docstrings that say what something is."""

import ast
import re
from collections import Counter

from rules import house


def nodes(*kinds):
    for path in house.FILES:
        for node in house.statements(house.tree(path)):
            if isinstance(node, kinds):
                yield path, node


def test_a_class_name_is_used_once():
    """Names that type aliases share are listed in `budgets.toml` (`named_twice`)."""
    names = Counter(node.name for _, node in nodes(ast.ClassDef))
    assert not [name for name, count in names.items() if count > 1]


def test_docstrings_begin_with_a_noun_or_a_verb():
    kinds = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef, ast.Module)
    openings = [
        f"{path.name}: {text}"
        for path, node in nodes(*kinds)
        if (text := ast.get_docstring(node)) and text.startswith("Of ")
    ]
    assert not openings


# Where a method may be named: as the default, and in keys of earlier versions.
KNOWS = {
    "kdlab/experiment/spec.py": {"student"},  # of an experiment that names none
    "kdlab/models/block_library.py": {"puzzle"},  # the only one that can train it
    "kdlab/config/registry.py": {
        "student",
        "blockwise",
        "ensemble",
    },  # names of version 0.1
    "kdlab/config/removed.py": {"puzzle"},
}


def test_nobody_outside_its_folder_knows_a_method_by_its_name():
    """Neither in an import nor in a text: other code asks `MethodSpec`."""
    home = house.KDLAB / "methods"
    wings = [path.parent.name for path in home.glob("*/__init__.py")]
    assert len(wings) > 3
    named = re.compile(rf"methods[./]({'|'.join(wings)})\b")
    named_in = {}
    for path in house.FILES:
        if path.is_relative_to(house.BESIDE) or path.is_relative_to(home):
            continue
        parts = list(ast.walk(house.tree(path)))
        docstrings = {id(n.value) for n in parts if isinstance(n, ast.Expr)}
        for node in parts:
            match node:
                case ast.Constant(value=str(text)) if id(node) not in docstrings:
                    names = named.findall(text)
                case ast.ImportFrom(module=str(text)):
                    names = named.findall(text)
                case _:
                    continue
            if names:
                named_in.setdefault(house.place(path), set()).update(names)
    assert named_in == KNOWS
