"""Names are plain: one class of a name, and docstrings that say what something is."""

import ast
from collections import Counter

from rules import house


def nodes(*kinds):
    for path in house.FILES:
        for node in house.statements(house.tree(path)):
            if isinstance(node, kinds):
                yield path, node


def test_a_class_name_is_used_once():
    """Those of type aliases, too; the few that are not are in `budgets.toml`."""
    names = Counter(node.name for _, node in nodes(ast.ClassDef))
    assert not [name for name, count in names.items() if count > 1]


def test_docstrings_begin_with_a_noun_or_a_verb():
    kinds = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef, ast.Module)
    found = [
        f"{path.name}: {text}"
        for path, node in nodes(*kinds)
        if (text := ast.get_docstring(node)) and text.startswith("Of ")
    ]
    assert not found
