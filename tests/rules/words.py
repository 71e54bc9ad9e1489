"""Find words and openings that say nothing: `python -m rules.words [FOLDER]`.

The glossary has the word to use for each idea.
"""

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

from rules import house

EMPTY = frozenset(
    "found own made told said given here one other kept whole together alone".split()  # noqa: SIM905
)
OPENINGS = re.compile(r"(What|Whether|Of|As|The same)\b")
GLOSSARY = (house.ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
OLD = dict(
    re.findall(r"^\| `(\w+)` \| (.+?) \|$", GLOSSARY, re.MULTILINE)
)  # and the new names
KEY = "# a key of JSON"  # on the line of a field whose name others read
# In docs, docstrings, comments and messages; with what to write instead.
PHRASES = {
    r"\b(is|are|was|were|be|been) gone on with\b": "continues",
    r"\bof one's own\b": "custom",
    r"\bnone any ?more\b": "no longer",
    r"\bas it is seen from outside\b": "from outside",
    r"\bknobs?\b(?!\.json|\()": "setting",
    r"\bby the hand of\b": "by",
}


def names(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Lines and names that a module binds outside comprehensions, of those in `EMPTY`."""
    inner = {
        id(name)
        for node in ast.walk(tree)
        if isinstance(node, ast.comprehension)
        for name in ast.walk(node.target)
    }
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) if id(node) not in inner:
                pass
            case ast.arg(arg=name) | ast.Attribute(attr=name, ctx=ast.Store()):
                pass
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                pass
            case ast.alias(asname=str(name)) | ast.ExceptHandler(name=str(name)):
                pass
            case ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                pass
            case _:
                continue
        if name.strip("_") in EMPTY:
            yield getattr(node, "lineno", 0), name


def names_in_script(source: str) -> Iterator[tuple[int, str]]:
    """Lines and names that a script of the live view declares, of those in `EMPTY`."""
    declared = re.compile(r"\b(?:const|let|function|class)\s+(\w+)|\bthis\.(\w+)\s*=[^=]")
    for number, line in enumerate(source.splitlines(), 1):
        for hit in declared.finditer(line):
            if (name := hit[1] or hit[2]) in EMPTY:
                yield number, name


def openings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Lines and first lines of docstrings that open with a word of `OPENINGS`."""
    kinds = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    for node in ast.walk(tree):
        if isinstance(node, kinds) and OPENINGS.match(
            text := ast.get_docstring(node) or ""
        ):
            yield getattr(node, "lineno", 1), text.splitlines()[0]


def renamed(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Lines of classes and functions that have a name of an earlier version, with the new one."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name in OLD:
            yield (
                node.lineno,
                f"{node.name} is called {OLD[node.name]} now (docs/glossary.md)",
            )


def phrases(text: str) -> Iterator[tuple[int, str]]:
    """Lines and phrases of `PHRASES` in a text, with what to write instead."""
    for number, line in enumerate(text.splitlines(), 1):
        for pattern, instead in PHRASES.items():
            if hit := re.search(pattern, line, re.IGNORECASE):
                yield number, f"{hit[0]!r}: write {instead!r}"


def spoken(source: str) -> str:
    """Comments and strings of a module, each on its line."""
    lines: dict[int, list[str]] = {}
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in (tokenize.COMMENT, tokenize.STRING):
            for offset, text in enumerate(token.string.splitlines()):
                lines.setdefault(token.start[0] + offset, []).append(text)
    return "\n".join(
        " ".join(lines.get(n, ())) for n in range(1, max(lines, default=0) + 1)
    )


def findings(path: Path) -> list[str]:
    """List what to write differently in a module or a page, each as FILE:LINE: TEXT."""
    text = path.read_text(encoding="utf-8")
    hits = list(phrases(spoken(text) if path.suffix == ".py" else text))
    if path.suffix == ".js":
        hits += [
            (line, f"a name that says nothing: {name}")
            for line, name in names_in_script(text)
        ]
    if path.suffix == ".py":
        tree = ast.parse(text)
        hits += renamed(tree)
        lines = text.splitlines()
        hits += [
            (line, f"a name that says nothing: {name}")
            for line, name in names(tree)
            if KEY not in lines[line - 1]
        ]
        hits += [
            (line, f"a docstring that opens so: {first}") for line, first in openings(tree)
        ]
    place = path.relative_to(house.ROOT)
    return [f"{place}:{line}: {hit}" for line, hit in sorted(hits)]


def main() -> int:
    below = [Path(arg).resolve() for arg in sys.argv[1:]] or [
        house.KDLAB,
        house.ROOT / "docs",
    ]
    files = [f for b in below for f in ([b] if b.is_file() else sorted(b.rglob("*")))]
    hits = [
        hit
        for file in files
        if file.suffix in (".py", ".md", ".js")
        for hit in findings(file)
    ]
    sys.stdout.write("\n".join([*hits, f"{len(hits)} findings\n"]))
    return bool(hits)


if __name__ == "__main__":
    raise SystemExit(main())
