"""Parse YAML into plain containers and record the line of each key.

A safe loader with four changes: `1e-3` is a number, only true and false are booleans
(`no` and `on` stay words), a key written twice is a fault instead of a surprise, and there
are only mappings, lists, text, numbers, booleans and null, within the bounds of limits.py.
"""

import re
from copy import deepcopy
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from kdlab.config import limits
from kdlab.config.limits import DEPTH, NODES, TEXT
from kdlab.errors import BadInput, Fault, short

_BRACKET = re.compile(r"[\[\]{}]")
# No two parts can match the same digits: it would take the square of their number.
_FLOAT = re.compile(
    r"^[-+]?(?:[0-9][0-9_]*(?:\.[0-9_]*)?(?:[eE][-+]?[0-9]+)?|\.[0-9_]+(?:[eE][-+]?[0-9]+)?"
    r"|\.(?:inf|Inf)|\.(?:nan|NaN))$"
)


class _Loader(yaml.SafeLoader):
    pass


_Loader.yaml_implicit_resolvers = {
    first: [
        (tag, pattern)
        for tag, pattern in rules
        if tag in ("tag:yaml.org,2002:int", "tag:yaml.org,2002:null")
    ]
    for first, rules in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:bool", re.compile("^(?:true|True|false|False)$"), list("tTfF")
)
_Loader.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, list("-+0123456789."))


_SCALARS = [f"tag:yaml.org,2002:{kind}" for kind in ("str", "int", "float", "bool", "null")]


@dataclass(slots=True)
class Document:
    data: Any
    origins: dict[str, str] = field(default_factory=dict)  # dotted key -> "file:line"
    faults: list[Fault] = field(default_factory=list)
    seen: dict[int, yaml.Node] = field(default_factory=dict)  # nodes by id, kept alive


# UnicodeError is a ValueError; PyYAML raises KeyError or AttributeError for an explicit tag
# that does not match its text, such as `!!bool x`.
_MALFORMED = (yaml.YAMLError, ValueError, KeyError, AttributeError, RecursionError)


def dotted(key: str, part: str) -> str:
    """Join a dotted key and a part of it; "" is the top of the tree."""
    return f"{key}.{part}" if key else part


def parse_value(text: str) -> Any:
    """Parse one YAML value of an override: `2`, `1e-3`, `null`, `[1, 2]`, `word`.

    Raises:
        BadInput: it is not plain YAML.
    """
    document = Document(None)
    _fill(document, text, "override")
    if document.faults:
        shown = short(repr(text), 100)
        raise BadInput(f"the value {shown} cannot be read: {document.faults[0].message}")
    return document.data


def read(path: Path, shown_as: str) -> Document:
    """Read a file whose top is a mapping; one that is none reads as empty, with its fault."""
    document = Document({})
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(TEXT + 1)
    except UnicodeDecodeError as error:
        document.faults.append(Fault("", f"is not UTF-8 text: {error}", shown_as))
        return document
    except OSError as error:
        document.faults.append(Fault("", f"cannot be read: {error.strerror}", shown_as))
        return document
    parsed = _parsed(text, shown_as)
    return Document(deepcopy(parsed.data), dict(parsed.origins), list(parsed.faults))


@lru_cache(maxsize=128)
def _parsed(text: str, shown_as: str) -> Document:
    """Parse a text once: a sweep reads the same few files for each trial."""
    document = Document({})
    _fill(document, text, shown_as)
    if not isinstance(document.data, dict):
        document.data = {}
        message = "the top of the file must be a mapping (key: value lines)"
        document.faults.append(Fault("", message, shown_as))
    return document


def dump(tree: Any) -> str:
    """Write plain containers as YAML, in insertion order."""
    # The C dumper is six times as fast.
    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    text: str = yaml.dump(tree, Dumper=dumper, sort_keys=False, allow_unicode=True)
    return text


def _fill(document: Document, text: str, shown_as: str) -> None:
    if len(text) > TEXT:
        message = f"is longer than {TEXT:,} characters, the most for a config"
        document.faults.append(Fault("", message, shown_as))
        return
    if _too_deep(text):  # PyYAML would need a minute for ten thousand brackets
        message = _explain(f"more than {DEPTH} brackets are open")
        document.faults.append(Fault("", message, shown_as))
        return
    loader = None
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        if node is not None:
            document.data = _build(loader, node, "", document, shown_as)
    except _MALFORMED as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or str(error) or type(error).__name__
        if isinstance(error, RecursionError):
            problem = "its lists or mappings nest too deep"
        document.faults.append(Fault("", _explain(problem), f"{shown_as}{line}"))
    finally:
        if loader is not None:
            loader.dispose()


def _too_deep(text: str) -> bool:
    """True where more brackets are open at once than lists and mappings may nest."""
    depth = 0
    for bracket in _BRACKET.findall(text):
        depth = depth + 1 if bracket in "[{" else max(0, depth - 1)
        if depth > DEPTH:
            return True
    return False


def _explain(problem: str) -> str:
    if "tag" in problem:
        return (
            f"{problem}. kdlab reads plain YAML only: a tag could run code, "
            "so configs name registered components instead (`type: losses/hinton`)"
        )
    return f"this is not valid YAML: {problem}"


def _build(
    loader: _Loader, node: yaml.Node, key: str, document: Document, shown_as: str
) -> Any:
    document.origins[key] = f"{shown_as}:{node.start_mark.line + 1}"
    if id(node) in document.seen:  # an alias: could nest without end
        raise yaml.YAMLError("aliases (*name) are not supported; refer with ${key} instead")
    document.seen[id(node)] = node
    if key.count(".") > DEPTH or len(document.seen) > NODES:
        raise yaml.YAMLError(
            f"it has more than {NODES:,} values, or lists and mappings more than {DEPTH} deep"
        )
    if isinstance(node, yaml.MappingNode) and node.tag == "tag:yaml.org,2002:map":
        mapping: dict[str, Any] = {}
        for key_node, value_node in node.value:
            name = str(_leaf(loader, key_node))
            why = limits.key_refusal(name)
            if why is not None:
                raise yaml.YAMLError(f"{short(repr(name), 60)} {why}")
            child = dotted(key, name)
            if name in mapping:
                line = f"{shown_as}:{key_node.start_mark.line + 1}"
                document.faults.append(Fault(child, "is written twice", line))
            mapping[name] = _build(loader, value_node, child, document, shown_as)
            document.origins[child] = f"{shown_as}:{key_node.start_mark.line + 1}"
        return mapping
    if isinstance(node, yaml.SequenceNode) and node.tag == "tag:yaml.org,2002:seq":
        return [
            _build(loader, child, dotted(key, str(i)), document, shown_as)
            for i, child in enumerate(node.value)
        ]
    return _leaf(loader, node)


def _leaf(loader: _Loader, node: yaml.Node) -> object:
    if not isinstance(node, yaml.ScalarNode) or node.tag not in _SCALARS:
        raise yaml.YAMLError(f"the tag {short(repr(node.tag), 60)} is not known here")
    value: object = loader.construct_object(node)
    why = limits.refusal(value)
    if why is not None:
        raise yaml.YAMLError(f"{short(repr(node.value), 60)} {why}")
    return value
