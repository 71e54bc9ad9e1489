"""Types, choices and range of one key of a spec."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args, get_origin

from kdlab.config import load as loader
from kdlab.config.folders import nearest
from kdlab.config.spec import Range, Spec, alternatives, hints_of, ranges_in
from kdlab.errors import NotFoundError


@dataclass(frozen=True, slots=True)
class SpecField:
    """A key of a spec, with the values it accepts."""

    key: str
    kinds: tuple[type, ...]  # float, int, bool, str; empty for a part or anything
    choices: tuple[object, ...]  # from a Literal
    limit: Range | None
    value: object  # in the unchanged experiment
    part: Spec | None = None  # the spec, if the key is a part


def field_at(spec: Spec, key: str) -> SpecField:
    """Return the field of a dotted key; NotFoundError, with the nearest, for unknown keys."""
    node: object = spec
    hint: object = None
    path: list[str] = []
    for part in key.split("."):
        if isinstance(node, Spec) and part == "type" and node.component:
            return SpecField(key, (), (), None, node.component)
        if isinstance(node, Spec):
            hint = hints_of(type(node)).get(part)
            exists = hint is not None
            node = getattr(node, part, None)
        elif isinstance(node, tuple | list):
            exists = part.isdigit() and int(part) < len(node)
            node, hint = (node[int(part)] if exists else None), _item(hint)
        elif isinstance(node, Mapping):
            exists = part in node
            node, hint = node.get(part), _item(hint)
        else:
            exists = False
        if not exists:
            keys = [k for k, _ in loader.flat(spec.to_dict())]
            where = f"{'.'.join(path)} has no key {part!r}" if path else f"no key {part!r}"
            raise NotFoundError(f"there is no key {key!r}: {where}.{nearest(key, keys)}")
        path.append(part)
    if isinstance(node, Spec):
        return SpecField(key, (), (), None, node.component, node)
    return SpecField(key, *_scalar_hint(hint), node)


def _item(hint: object) -> object:
    """Return the type of a tuple's items or of a mapping's values."""
    for option in alternatives(hint):
        arguments = get_args(option)
        if get_origin(option) in (tuple, list):
            return arguments[0]
        if len(arguments) == 2:
            return arguments[1]
    return None


def _scalar_hint(hint: object) -> tuple[tuple[type, ...], tuple[object, ...], Range | None]:
    """Return the scalar types, choices and range of a hint."""
    kinds, choices = list[type](), list[object]()
    for option in alternatives(hint):
        if get_origin(option) is Literal:
            choices += get_args(option)
            kinds.append(str)
        elif isinstance(option, type) and option in (float, int, bool, str):
            kinds.append(option)
    return tuple(dict.fromkeys(kinds)), tuple(choices), next(ranges_in(hint), None)
