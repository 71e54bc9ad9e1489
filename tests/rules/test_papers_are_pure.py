"""kdlab/papers uses the standard library only, and no clock, wire, thread or chance."""

import ast
import sys
from pathlib import Path

import pytest

FORBIDDEN = {"asyncio", "random", "secrets", "socket", "subprocess", "threading", "time"}
FILES = sorted((Path(__file__).parents[2] / "kdlab" / "papers").rglob("*.py"))


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
            assert name.startswith("kdlab.papers") or root in sys.stdlib_module_names, name
