"""Check whether the code has changed since a result was measured.

A result has a hash of each part of the package that it measures. Only what runs is hashed: a
change of comments, docstrings or empty lines makes no result older. Nor does a change that can
have moved no number, such as a mend of what failed: `results/without_effect.csv` has a line for
each, in their order, with the hashes before and after, why, and the test that shows it.
"""

import ast
import csv
from collections.abc import Iterable, Mapping
from functools import cache
from hashlib import sha256
from io import StringIO
from pathlib import Path
from tokenize import COMMENT, generate_tokens
from typing import Any

import kdlab

Facts = Mapping[str, Any]  # a result as `result.json` has it, or a row of it
PACKAGE = Path(kdlab.__file__).parent
WITHOUT_EFFECT = Path(__file__).parents[1] / "results" / "without_effect.csv"
_BODIES = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def code_of(parts: Iterable[str]) -> dict[str, str]:
    """Return hashes of folders and files of the package, such as `cluster/reader`, by name.

    Raises:
        FileNotFoundError: the package has no such part.
    """
    return {part: _hash_of(part) for part in parts}


def changed_since(result: Facts) -> tuple[str, ...]:
    """Return the parts whose code has changed since a kept result was measured.

    Empty if nothing was measured. A result that has no hashes of its code counts as older than
    all of the package: `("kdlab",)`.
    """
    if all(row["measured"] is None for row in result["rows"]):
        return ()
    code: Mapping[str, str] = result.get("code") or {}
    if not code:
        return ("kdlab",)
    return tuple(
        part for part, was in code.items() if _hash_or_none(part) != _carried(part, was)
    )


def _carried(part: str, was: str) -> str:
    """Return the hash of a part after the changes that moved no number since `was`."""
    with WITHOUT_EFFECT.open(newline="", encoding="utf-8") as file:
        for change in csv.DictReader(file):
            if (change["part"], change["was"]) == (part, was):
                was = change["now"]
    return was


def _hash_or_none(part: str) -> str | None:
    try:
        return _hash_of(part)
    except FileNotFoundError:
        return None


@cache
def _hash_of(part: str) -> str:
    place = PACKAGE / part
    files = sorted(place.rglob("*.py")) if place.is_dir() else [place.with_suffix(".py")]
    total = sha256()
    for path in files:
        total.update(path.relative_to(PACKAGE).as_posix().encode())
        total.update(what_runs(path.read_text(encoding="utf-8")).encode())
    return total.hexdigest()[:16]


def what_runs(source: str) -> str:
    """Return the lines of a module without docstrings, comments and empty lines."""
    lines = source.split("\n")
    for kind, _, (number, column), *_ in generate_tokens(StringIO(source).readline):
        if kind == COMMENT:
            lines[number - 1] = lines[number - 1][:column]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, _BODIES) and ast.get_docstring(node, clean=False) is not None:
            first, last = node.body[0].lineno, node.body[0].end_lineno or 0
            lines[first - 1 : last] = [""] * (last - first + 1)
    return "\n".join(line.rstrip() for line in lines if line.strip())
