"""JSON of whoever wrote it is read in one place, with bounds of size, depth and types."""

import ast

from rules import house

READER = "kdlab/codec.py"  # `parsed`; kdlab/config/home.py has it for files
# Other modules that read JSON, and how often: this only shrinks. train/schedules.py reads the
# options that it has written itself.
BY_THEMSELVES = {
    "kdlab/train/schedules.py": 1,
}


def reads(node):
    """Tell if a node parses JSON, unless it is the JSON of a `dumps` in the same call."""
    if not isinstance(node, ast.Call):
        return False
    return ast.unparse(node.func) in ("json.loads", "json.load", "loads") and not (
        node.args and ast.unparse(node.args[0]).startswith("json.dumps(")
    )


def test_json_is_read_in_one_place():
    counts = {}
    for path in house.FILES:
        if count := sum(map(reads, ast.walk(house.tree(path)))):
            counts[house.place(path)] = count
    assert counts.pop(READER) == 1
    assert counts == BY_THEMSELVES
