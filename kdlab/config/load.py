"""Compose a config, its cards and overrides into one tree that records origins.

Order: the config file, then overrides, then each `use:` is replaced by its card with
the keys beside it laid on top, then `${...}` references are resolved by OmegaConf.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from kdlab.config import folders, limits, yaml_text
from kdlab.config.kept import key_of
from kdlab.config.source_index import ROOMS
from kdlab.config.yaml_text import dotted
from kdlab.errors import BadInput, Fault, KdlabError, NotFoundError, SpecError, short

P = ParamSpec("P")
T = TypeVar("T")
Overrides = Sequence[str | Mapping[str, Any]]
_REFERENCE = re.compile(r"\$\{[A-Za-z_][\w.]*\}")  # to another key, and nothing else


@dataclass(slots=True)
class Composed:
    """A resolved tree. `origins` maps each dotted key to the file and line that set it."""

    name: str
    data: dict[str, Any]
    origins: dict[str, str] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)
    broken: set[str] = field(default_factory=set)  # keys whose subtree is unusable
    cards: int = 0  # expanded so far

    def origin(self, key: str) -> str:
        """Return where a key, or else its nearest parent, was set."""
        while key and key not in self.origins:
            key = key.rpartition(".")[0]
        return self.origins.get(key, "")


def never_a_traceback(load: Callable[P, T]) -> Callable[P, T]:
    """Decorator: report an unexpected exception as a fault, which calls it a defect of kdlab."""

    @wraps(load)
    def caught(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return load(*args, **kwargs)
        except KdlabError:
            raise
        except Exception as error:
            what = short(f"{type(error).__name__}: {error}")
            raise SpecError(
                [Fault("", f"cannot be read ({what}); please report this defect of kdlab")]
            ) from error

    return caught


@never_a_traceback
def compose(name: str, overrides: Overrides = ()) -> Composed:
    """Read a config from `configs/` (or a path to a YAML file) and resolve it.

    Raises:
        NotFoundError: no such config.
    """
    return _resolve(*_config(name), overrides)


def _config(name: str) -> tuple[str, yaml_text.Document]:
    path = folders.yaml_file(name) or folders.find("configs", name)
    document = yaml_text.read(path, folders.display(path))
    return name.removesuffix(".yaml"), document


@never_a_traceback
def compose_card(name: str, overrides: Overrides = ()) -> Composed:
    """Read a card of the registry and resolve it; NotFoundError where there is none."""
    return _resolve(name, _card(name), overrides)


def _card(name: str) -> yaml_text.Document:
    path = folders.find("registry", name)
    document = yaml_text.read(path, folders.display(path))
    document.data.pop("about", None)
    return document


@never_a_traceback
def from_dict(data: Mapping[str, Any], name: str, overrides: Overrides = ()) -> Composed:
    """Resolve a tree from Python or from a run folder.

    Raises:
        SpecError: the tree is larger than kdlab/config/limits.py allows.
    """
    why = limits.tree_refusal(data)
    if why is not None:
        raise SpecError([Fault("", f"it {why}")], about=short(name, 60))
    return _resolve(name, yaml_text.Document(deepcopy(dict(data))), overrides)


@never_a_traceback
def written(name: str, overrides: Overrides = ()) -> dict[str, Any]:
    """Return a config with overrides, as written: cards by name, no defaults."""
    tree = _overridden(*_config(name), overrides)
    return dict(tree.data)


def _resolve(name: str, document: yaml_text.Document, overrides: Overrides) -> Composed:
    tree = _overridden(name, document, overrides)
    tree.data = _expand(tree, tree.data, "", ())
    _interpolate(tree)
    return tree


def _overridden(name: str, document: yaml_text.Document, overrides: Overrides) -> Composed:
    tree = Composed(name, document.data, document.origins, document.faults)
    for key, value in pairs(overrides):
        _override(tree, key, value)
    return tree


def pairs(overrides: Overrides) -> list[tuple[str, Any]]:
    """Split overrides into dotted keys and values; BadInput where one is not key=value."""
    items: list[tuple[str, Any]] = []
    for item in overrides:
        if isinstance(item, Mapping):
            why = limits.tree_refusal(item)
            if why is not None:
                raise BadInput(f"the overrides {short(repr(dict(item)), 100)}: one {why}")
            items += item.items()
            continue
        if not isinstance(item, str):
            raise BadInput(
                f"an override is 'key=value' or a mapping, not {type(item).__name__}"
            )
        key, equals, text = item.partition("=")
        if not equals or not key:
            raise BadInput(
                f"override {short(repr(item), 100)} is not of the form key=value, "
                "for example train.epochs=2"
            )
        why = limits.key_refusal(key)
        if why is not None:
            raise BadInput(f"override {short(repr(item), 100)}: {why}")
        items.append((key, yaml_text.parse_value(text)))
    return items


def merged(overrides: Overrides) -> dict[str, Any]:
    """Merge overrides into one mapping; the last value of a key wins and sets its position."""
    values: dict[str, Any] = {}
    for key, value in pairs(overrides):
        values.pop(key, None)
        values[key] = value
    return values


def _override(tree: Composed, key: str, value: Any) -> None:
    value = deepcopy(value)  # later overrides change it
    *parents, last = key.split(".")
    node: Any = tree.data
    for i, part in enumerate(parents):
        child = at(node, part)
        is_name = isinstance(child, str) and ("/" in child or i == 0)
        if is_name and isinstance(node, dict):
            child = node[part] = {_key_for(child): child}  # student: timm/resnet18
        if not isinstance(child, dict | list):
            if child is not None or not isinstance(node, dict):
                place = ".".join(parents[: i + 1])
                tree.faults.append(
                    Fault(key, f"{place} is {child!r} and has no keys below it", "override")
                )
                return
            child = node[part] = {}
        node = child
    current = at(node, last)
    names_component = isinstance(value, str) and "/" in value
    if names_component and (isinstance(current, dict) or (current is None and not parents)):
        value = {_key_for(value): value}
    if isinstance(node, list):
        if not _indexes(node, last):
            tree.faults.append(
                Fault(key, f"{last!r} is no index of a list of {len(node)}", "override")
            )
            return
        node[int(last)] = value
    else:
        node[last] = value
    for stale in [k for k in tree.origins if k.startswith(f"{key}.")]:
        del tree.origins[stale]
    tree.origins[key] = "override"


def _key_for(name: str) -> str:
    """Return `use` for the name of a card, `type` for that of a component, misspelt ones too."""
    cards = folders.names("registry")
    shelves = {card.split("/", 1)[0] for card in cards}
    shelf = name.split("/", 1)[0]
    return "use" if name in cards or (shelf in shelves and shelf not in ROOMS) else "type"


def at(node: Any, key: str, default: Any = None) -> Any:
    """Return the value under a dotted key of a tree."""
    for part in key.split("."):
        if isinstance(node, Mapping) and part in node:
            node = node[part]
        elif isinstance(node, list) and _indexes(node, part):
            node = node[int(part)]
        else:
            return default
    return node


def _indexes(node: list[object], part: str) -> bool:
    digits = part.isascii() and part.isdecimal() and len(part) <= len(str(len(node)))
    return digits and int(part) < len(node)


def _expand(tree: Composed, node: Any, key: str, chain: tuple[str, ...]) -> Any:
    """Replace each `use:` below `node` by its card; `chain` has the cards around it."""
    if isinstance(node, list):
        return [_expand(tree, v, dotted(key, str(i)), chain) for i, v in enumerate(node)]
    if isinstance(node, str) and _is_card(node, key):
        node = {"use": node}
    if not isinstance(node, dict):
        return node
    if "use" not in node:
        return {k: _expand(tree, v, dotted(key, k), chain) for k, v in node.items()}
    name = str(node["use"])
    rest = {k: v for k, v in node.items() if k != "use"}
    origin = tree.origin(dotted(key, "use"))
    if name in chain:
        circle = " -> ".join([*chain[chain.index(name) :], name])
        return _break(tree, key, f"cards use each other in a circle: {circle}", origin)
    tree.cards += 1
    if tree.cards > limits.CARDS:
        more = f"more than {limits.CARDS} cards are used in each other"
        return _break(tree, key, more, origin)
    try:
        document = _card(name)
    except NotFoundError as error:
        return _break(tree, key, str(error), origin)
    tree.faults += document.faults
    if document.faults or not isinstance(document.data, dict):
        return _break(tree, key, f"card {name} cannot be read", origin)
    for where, place in document.origins.items():
        tree.origins.setdefault(dotted(key, where) if where else key, place)
    card = _expand(tree, document.data, key, (*chain, name))
    return _merge(card, _expand(tree, rest, key, chain))


def _is_card(text: str, key: str) -> bool:
    """True where a top-level value is the name of a card."""
    stands = key not in ("", "about", "type", "use") and "." not in key
    return stands and "/" in text and text in folders.names("registry")


def _break(tree: Composed, key: str, message: str, origin: str) -> dict[str, Any]:
    tree.faults.append(Fault(key, message, origin))
    tree.broken.add(key)
    return {}


def _merge(base: Any, over: Any) -> Any:
    """Merge mappings recursively; replace one whose `type` changes."""
    if not (isinstance(base, dict) and isinstance(over, dict)):
        return over
    if "type" in over and over["type"] != base.get("type"):
        return over
    return base | {k: _merge(base[k], v) if k in base else v for k, v in over.items()}


def _interpolate(tree: Composed) -> None:
    if not any("${" in text for _, text in _strings(tree.data, "")):
        return
    from omegaconf import OmegaConf  # 0.1 s, and most configs have no reference
    from omegaconf.errors import OmegaConfBaseException

    for key, text in _strings(tree.data, ""):
        if "${" in _REFERENCE.sub("", text):
            tree.faults.append(
                Fault(
                    key,
                    f"{text!r} is not a plain reference to another key, such as "
                    "${train.batch}; resolvers could run code and are not allowed",
                    tree.origin(key),
                )
            )
            tree.broken.add(key)
    if not tree.faults and _grown(tree.data) > limits.NODES:
        more = f"has more than {limits.NODES:,} values after references are resolved"
        tree.faults.append(Fault("", more, tree.origin("")))
    if tree.faults:
        return
    try:
        resolved = OmegaConf.to_container(OmegaConf.create(tree.data), resolve=True)
    # OmegaConf's parser raises these others for some texts.
    except (OmegaConfBaseException, ValueError, TypeError, RecursionError) as error:
        key = str(getattr(error, "full_key", "") or "")
        first = str(error).split("\n", 1)[0]
        tree.faults.append(Fault(key, first, tree.origin(key)))
    else:
        assert isinstance(resolved, dict)
        tree.data = {str(k): v for k, v in resolved.items()}


def _grown(data: dict[str, Any]) -> int:
    """Count values and hundreds of characters of a tree after references are resolved."""
    # Sizes of targets; 0 while one is measured, which ends cycles.
    sizes: dict[str, int] = {}

    def target(key: str) -> int:
        if key not in sizes:
            sizes[key] = 0
            sizes[key] = size(at(data, key))
        return sizes[key]

    def size(node: Any) -> int:
        if isinstance(node, dict):
            return 1 + sum(size(v) for v in node.values())
        if isinstance(node, list):
            return 1 + sum(size(v) for v in node)
        if not isinstance(node, str):
            return 1
        keys = _REFERENCE.findall(node)
        return 1 + len(node) // 100 + sum(target(key[2:-1]) for key in keys)

    return size(data)


def _strings(node: Any, key: str) -> list[tuple[str, str]]:
    if isinstance(node, dict):
        return [s for k, v in node.items() for s in _strings(v, dotted(key, str(k)))]
    if isinstance(node, list):
        return [s for i, v in enumerate(node) for s in _strings(v, dotted(key, str(i)))]
    return [(key, node)] if isinstance(node, str) else []


def spec_hash(data: Mapping[str, Any]) -> str:
    """Hash a resolved tree, 16 hex digits; `about` and `tracking` do not count."""
    counted = {k: v for k, v in data.items() if k not in ("about", "tracking")}
    text = json.dumps(counted, sort_keys=True, separators=(",", ":"), default=str)
    return key_of(text)


def flat(tree: Any, key: str = "") -> list[tuple[str, Any]]:
    """Flatten a tree into dotted keys and values; lists of plain values are one value."""
    if isinstance(tree, dict):
        return [row for k, v in tree.items() for row in flat(v, dotted(key, k))]
    if isinstance(tree, list) and any(isinstance(v, dict) for v in tree):
        return [row for i, v in enumerate(tree) for row in flat(v, f"{key}.{i}")]
    return [(key, tree)]
