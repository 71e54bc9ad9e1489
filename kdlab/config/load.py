"""A config by name, with its cards and overrides, as one tree that knows its origins.

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
    """A resolved tree. `origins` maps each dotted key to the place that set it."""

    name: str
    data: dict[str, Any]
    origins: dict[str, str] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)
    broken: set[str] = field(default_factory=set)  # keys whose subtree is unusable
    cards: int = 0  # that were put in

    def origin(self, key: str) -> str:
        """Where a key was set, or the nearest parent that was."""
        while key and key not in self.origins:
            key = key.rpartition(".")[0]
        return self.origins.get(key, "")


def never_a_traceback(load: Callable[P, T]) -> Callable[P, T]:
    """The last net: what nobody thought of is a fault too, and names itself a defect of kdlab."""

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
    """The same for one card of the registry."""
    return _resolve(name, _card(name), overrides)


def _card(name: str) -> yaml_text.Document:
    path = folders.find("registry", name)
    document = yaml_text.read(path, folders.display(path))
    if isinstance(document.data, dict):
        document.data.pop("about", None)
    return document


@never_a_traceback
def from_dict(data: Mapping[str, Any], name: str, overrides: Overrides = ()) -> Composed:
    """A tree that was written in Python or read back from a run folder.

    Raises:
        SpecError: it is larger than a config may be.
    """
    why = limits.tree_refusal(data)
    if why is not None:
        raise SpecError([Fault("", f"it {why}")], about=short(name, 60))
    return _resolve(name, yaml_text.Document(deepcopy(dict(data))), overrides)


@never_a_traceback
def written(name: str, overrides: Overrides = ()) -> dict[str, Any]:
    """A config with overrides as a person would write it: cards by name, no defaults."""
    tree = _overridden(*_config(name), overrides)
    return dict(tree.data)


def _resolve(name: str, document: yaml_text.Document, overrides: Overrides) -> Composed:
    tree = _overridden(name, document, overrides)
    tree.data = _expand(tree, tree.data, "", ())
    _interpolate(tree)
    return tree


def _overridden(name: str, document: yaml_text.Document, overrides: Overrides) -> Composed:
    if not isinstance(document.data, dict):
        document.faults.append(
            Fault("", "the top of the file must be a mapping (key: value lines)")
        )
        document.data = {}
    tree = Composed(name, document.data, document.origins, document.faults)
    for key, value in pairs(overrides):
        _override(tree, key, value)
    return tree


def pairs(overrides: Overrides) -> list[tuple[str, Any]]:
    """Dotted keys and values of overrides; BadInput where one is not of the form key=value."""
    found: list[tuple[str, Any]] = []
    for item in overrides:
        if isinstance(item, Mapping):
            why = limits.tree_refusal(item)
            if why is not None:
                raise BadInput(f"the overrides {short(repr(dict(item)), 100)}: one {why}")
            found += item.items()
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
        found.append((key, yaml_text.parse_value(text)))
    return found


def merged(overrides: Overrides) -> dict[str, Any]:
    """The same as one mapping; a key that was given twice stands where it came last."""
    found: dict[str, Any] = {}
    for key, value in pairs(overrides):
        found.pop(key, None)
        found[key] = value
    return found


def _override(tree: Composed, key: str, value: Any) -> None:
    value = deepcopy(value)  # later overrides write into it
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
    before = at(node, last)
    names_a_part = isinstance(value, str) and "/" in value
    if names_a_part and (isinstance(before, dict) or (before is None and not parents)):
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
    """Whether a name in an override means a card or a component, known or misspelt."""
    cards = folders.names("registry")
    shelves = {card.split("/", 1)[0] for card in cards}
    shelf = name.split("/", 1)[0]
    return "use" if name in cards or (shelf in shelves and shelf not in ROOMS) else "type"


def at(node: Any, key: str, default: Any = None) -> Any:
    """What stands in a tree under a dotted key."""
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
    """Replace every `use:` below `node` by its card; `chain` finds cycles."""
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
    """Whether a plain word names a card where a part of an experiment stands."""
    stands = key not in ("", "about", "type", "use") and "." not in key
    return stands and "/" in text and text in folders.names("registry")


def _break(tree: Composed, key: str, message: str, origin: str) -> dict[str, Any]:
    tree.faults.append(Fault(key, message, origin))
    tree.broken.add(key)
    return {}


def _merge(base: Any, over: Any) -> Any:
    """Mappings are laid over each other; a mapping of another type replaces."""
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
        more = f"references make more than {limits.NODES:,} values of it"
        tree.faults.append(Fault("", more, tree.origin("")))
    if tree.faults:
        return
    try:
        resolved = OmegaConf.to_container(OmegaConf.create(tree.data), resolve=True)
    # OmegaConf's grammar, and text of some kinds that it takes for such, raise others too.
    except (OmegaConfBaseException, ValueError, TypeError, RecursionError) as error:
        key = str(getattr(error, "full_key", "") or "")
        first = str(error).split("\n", 1)[0]
        tree.faults.append(Fault(key, first, tree.origin(key)))
    else:
        assert isinstance(resolved, dict)
        tree.data = {str(k): v for k, v in resolved.items()}


def _grown(data: dict[str, Any]) -> int:
    """Values and hundreds of characters of a tree when each reference is replaced by its target."""
    # Of targets; while one is measured it is 0, which ends circles.
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
    """16 hex digits of the resolved tree. Words for people (`about`) do not count."""
    counted = {k: v for k, v in data.items() if k not in ("about", "tracking")}
    text = json.dumps(counted, sort_keys=True, separators=(",", ":"), default=str)
    return key_of(text)


def flat(tree: Any, key: str = "") -> list[tuple[str, Any]]:
    """Dotted keys of a tree of mappings; lists of plain values stay whole."""
    if isinstance(tree, dict):
        return [row for k, v in tree.items() for row in flat(v, dotted(key, k))]
    if isinstance(tree, list) and any(isinstance(v, dict) for v in tree):
        return [row for i, v in enumerate(tree) for row in flat(v, f"{key}.{i}")]
    return [(key, tree)]
