"""The papers' algorithms use the standard library only: no clock, network, thread or chance.

So do the kinds of events that they report, and ranges, but not the log of events. Their messages
are msgspec's structs, which the codec tells apart.
"""

import ast
import sys
from pathlib import Path

import pytest

FORBIDDEN = {"asyncio", "random", "secrets", "socket", "subprocess", "threading", "time"}
KDLAB = Path(__file__).parents[2] / "kdlab"
EVENTS = [p for p in sorted((KDLAB / "events").glob("*.py")) if p.stem != "log"]
FILES = [*sorted((KDLAB / "papers").rglob("*.py")), *EVENTS]
PURE = (
    "kdlab.papers",
    "kdlab.events",
    "kdlab.ranges",
    "kdlab.renamed",
    "kdlab.codec",
    "msgspec",
)


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_is_pure(path):
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        for name in names:
            root = name.split(".")[0]
            assert root not in FORBIDDEN, f"{path.name} imports {name}"
            assert name != "kdlab.events.log", f"{path.name} imports {name}"
            assert name.startswith(PURE) or root in sys.stdlib_module_names, name
