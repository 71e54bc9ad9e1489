"""What a key of a spec takes: kinds of values, choices, a range."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args, get_origin

from kdlab.config import load as loader
from kdlab.config.folders import nearest
from kdlab.config.spec import Range, Spec, alternatives, hints_of, ranges_in
from kdlab.errors import NotFoundError


@dataclass(frozen=True, slots=True)
class SpecField:
    """A key of a spec: what it takes."""

    key: str
    kinds: tuple[type, ...]  # float, int, bool, str; empty for a part or anything
    choices: tuple[object, ...]  # of a Literal
    limit: Range | None
    value: object  # in the experiment as it is
    part: Spec | None = None  # where the key is of one


def leaf_of(spec: Spec, key: str) -> SpecField:
    """What a dotted key of a spec takes; NotFoundError where no spec has it, with the nearest."""
    node: object = spec
    hint: object = None
    done: list[str] = []
    for part in key.split("."):
        if isinstance(node, Spec) and part == "type" and node.component:
            return SpecField(key, (), (), None, node.component)
        if isinstance(node, Spec):
            hint = hints_of(type(node)).get(part)
            known = hint is not None
            node = getattr(node, part, None)
        elif isinstance(node, tuple | list):
            known = part.isdigit() and int(part) < len(node)
            node, hint = (node[int(part)] if known else None), _item(hint)
        elif isinstance(node, Mapping):
            known = part in node
            node, hint = node.get(part), _item(hint)
        else:
            known = False
        if not known:
            keys = [k for k, _ in loader.flat(spec.to_dict())]
            where = f"{'.'.join(done)} has no key {part!r}" if done else f"no key {part!r}"
            raise NotFoundError(f"there is no key {key!r}: {where}.{nearest(key, keys)}")
        done.append(part)
    if isinstance(node, Spec):
        return SpecField(key, (), (), None, node.component, node)
    return SpecField(key, *_taken(hint), node)


def _item(hint: object) -> object:
    """The type of a tuple's items or a mapping's values."""
    for option in alternatives(hint):
        arguments = get_args(option)
        if get_origin(option) in (tuple, list):
            return arguments[0]
        if len(arguments) == 2:
            return arguments[1]
    return None


def _taken(hint: object) -> tuple[tuple[type, ...], tuple[object, ...], Range | None]:
    """Kinds of scalar, choices and range of a field."""
    kinds, choices = list[type](), list[object]()
    for option in alternatives(hint):
        if get_origin(option) is Literal:
            choices += get_args(option)
            kinds.append(str)
        elif isinstance(option, type) and option in (float, int, bool, str):
            kinds.append(option)
    return tuple(dict.fromkeys(kinds)), tuple(choices), next(ranges_in(hint), None)
