"""YAML text to plain containers that remember the line each key stands on.

A safe loader with three changes: `1e-3` is a number, only true and false are booleans
(`no` and `on` stay words), and a key written twice is a fault instead of a surprise.
"""

import re
from copy import deepcopy
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from kdlab.errors import BadInput, Fault

_FLOAT = re.compile(
    r"^[-+]?(?:[0-9][0-9_]*\.?[0-9_]*(?:[eE][-+]?[0-9]+)?|\.[0-9_]+(?:[eE][-+]?[0-9]+)?"
    r"|\.(?:inf|Inf)|\.(?:nan|NaN))$"
)


class _Loader(yaml.SafeLoader):
    pass


_Loader.yaml_implicit_resolvers = {
    first: [
        (tag, pattern)
        for tag, pattern in rules
        if tag
        not in (
            "tag:yaml.org,2002:float",
            "tag:yaml.org,2002:bool",
            "tag:yaml.org,2002:timestamp",
        )
    ]
    for first, rules in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:bool", re.compile("^(?:true|True|false|False)$"), list("tTfF")
)
_Loader.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, list("-+0123456789."))


@dataclass(slots=True)
class Document:
    data: Any
    origins: dict[str, str] = field(default_factory=dict)  # dotted key -> "file:line"
    faults: list[Fault] = field(default_factory=list)
    seen: dict[int, yaml.Node] = field(default_factory=dict)  # nodes by id, kept alive


_MALFORMED = (yaml.YAMLError, ValueError, RecursionError)  # UnicodeError is a ValueError


def parse_value(text: str) -> Any:
    """One value as YAML, for overrides: `2`, `1e-3`, `null`, `[1, 2]`, `word`.

    Raises:
        BadInput: it is not plain YAML.
    """
    document = Document(None)
    _fill(document, text, "override")
    if document.faults:
        raise BadInput(f"the value {text!r} cannot be read: {document.faults[0].message}")
    return document.data


def read(path: Path, shown_as: str) -> Document:
    document = Document({})
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        document.faults.append(Fault("", f"is not UTF-8 text: {error}", shown_as))
        return document
    known = _parsed(text, shown_as)
    return Document(deepcopy(known.data), dict(known.origins), list(known.faults))


@lru_cache(maxsize=128)
def _parsed(text: str, shown_as: str) -> Document:
    """A sweep reads the same few files for each of its trials."""
    document = Document({})
    _fill(document, text, shown_as)
    return document


def dump(tree: Any) -> str:
    """Plain containers as YAML, in their own order."""
    kind = getattr(
        yaml, "CSafeDumper", yaml.SafeDumper
    )  # six times as fast, where it is built
    text: str = yaml.dump(tree, Dumper=kind, sort_keys=False, allow_unicode=True)
    return text


def _fill(document: Document, text: str, shown_as: str) -> None:
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
        document.faults.append(Fault("", _explain(problem), f"{shown_as}{line}"))
    finally:
        if loader is not None:
            loader.dispose()


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
        raise yaml.YAMLError("aliases (*name) are not used here; refer with ${key} instead")
    document.seen[id(node)] = node
    if isinstance(node, yaml.MappingNode) and node.tag == "tag:yaml.org,2002:map":
        mapping: dict[str, Any] = {}
        for key_node, value_node in node.value:
            name = str(loader.construct_object(key_node))
            child = f"{key}.{name}" if key else name
            if name in mapping:
                line = f"{shown_as}:{key_node.start_mark.line + 1}"
                document.faults.append(Fault(child, "is written twice", line))
            mapping[name] = _build(loader, value_node, child, document, shown_as)
            document.origins[child] = f"{shown_as}:{key_node.start_mark.line + 1}"
        return mapping
    if isinstance(node, yaml.SequenceNode) and node.tag == "tag:yaml.org,2002:seq":
        return [
            _build(loader, child, f"{key}.{i}" if key else str(i), document, shown_as)
            for i, child in enumerate(node.value)
        ]
    return loader.construct_object(node, deep=True)
