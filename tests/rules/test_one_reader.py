"""JSON of whoever wrote it is read in one place, with bounds of size, depth and types."""

import ast

from rules import house

READER = "kdlab/codec.py"  # `parsed`; kdlab/config/home.py has it for files
# Who reads by themselves still, and how often: this only shrinks. Own options come back as they
# went in from train/schedules.py.
BY_THEMSELVES = {
    "kdlab/train/schedules.py": 1,
}


def reads(node):
    """Whether it parses JSON; of what was JSON a moment before, there and back, nobody else."""
    if not isinstance(node, ast.Call):
        return False
    return ast.unparse(node.func) in ("json.loads", "json.load", "loads") and not (
        node.args and ast.unparse(node.args[0]).startswith("json.dumps(")
    )


def test_json_is_read_in_one_place():
    found = {}
    for path in house.FILES:
        if count := sum(map(reads, ast.walk(house.tree(path)))):
            found[house.place(path)] = count
    assert found.pop(READER) == 1
    assert found == BY_THEMSELVES
