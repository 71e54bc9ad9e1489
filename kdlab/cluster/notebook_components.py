"""Components from a notebook cell, sent to other processes as text.

Only the definitions of the cell are sent: its imports, classes, functions and constants,
never its other statements. The process that started the run sends a hash with each text;
text with another hash is not executed.
"""

import ast
import hashlib
import linecache
import sys
from types import ModuleType
from typing import Any

from kdlab.config import registry
from kdlab.errors import BadInput

_DEFINITIONS = (ast.Import, ast.ImportFrom, ast.ClassDef, ast.FunctionDef, ast.AnnAssign)


def package_components(names: set[str]) -> dict[str, dict[str, str]]:
    """Package components that exist only in this process: {name: {"source", "sha256"}}."""
    packed = {}
    for name in sorted(names):
        cell = registry.cell_source(name)
        if cell is not None:
            source = definitions(cell)
            packed[name] = {"source": source, "sha256": _hash(source)}
    return packed


def definitions(cell: str) -> str:
    """Extract the definitions of a cell or script, without its other statements."""
    lines = [line for line in cell.splitlines() if not line.lstrip().startswith(("%", "!"))]
    body = ast.parse("\n".join(lines)).body
    nodes = [node for node in body if isinstance(node, _DEFINITIONS) or _is_constant(node)]
    return ast.unparse(ast.Module(body=nodes, type_ignores=[])) + "\n"


def _is_constant(node: ast.stmt) -> bool:
    return isinstance(node, ast.Assign) and isinstance(
        node.value, ast.Constant | ast.Tuple | ast.List | ast.Dict | ast.UnaryOp
    )


def define_components(components: dict[str, Any]) -> None:
    """Define packaged components in this process.

    Raises:
        BadInput: a text does not match its hash, or does not run by itself.
    """
    done: set[str] = set()
    for name, entry in components.items():
        source, expected = entry["source"], entry["sha256"]
        if _hash(source) != expected:
            raise BadInput(
                f"the source of component {name!r} has hash {_hash(source)[:16]}, expected "
                f"{expected[:16]}: it changed after the run started, and is not run"
            )
        if expected not in done:
            done.add(expected)
            _define(name, source, expected)


def _define(name: str, source: str, digest: str) -> None:
    module = ModuleType(f"kdlab_cell_{digest[:16]}")
    file = f"<{module.__name__}>"
    # linecache lets this process pass on the source (a run to its teachers).
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    sys.modules[module.__name__] = module
    try:
        exec(compile(source, file, "exec"), module.__dict__)  # hash checked
    except Exception as error:  # the user's code may raise anything
        raise BadInput(
            f"component {name!r} from the notebook cannot be defined in another process: "
            f"{type(error).__name__}: {error}. Its cell must hold its own imports and "
            "everything that it uses."
        ) from error


def _hash(source: str) -> str:
    return hashlib.sha256(source.encode()).hexdigest()
