"""Build specs from a resolved tree; all faults at once, with key, line and value."""

import contextlib
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Annotated, Any, Literal, TypeVar, Union, cast, get_args, get_origin

from kdlab.config import registry
from kdlab.config.folders import names, nearest
from kdlab.config.limits import refusal
from kdlab.config.load import Composed, never_a_traceback
from kdlab.config.removed import instead, unset
from kdlab.config.source_index import Shape, component_shape, shape
from kdlab.config.spec import Spec, hints_of, required_fields
from kdlab.config.yaml_text import dotted
from kdlab.errors import Fault, NotFoundError, SpecError

S = TypeVar("S", bound=Spec)


class _Bad:
    """Marks a value whose fault is reported already: one mistake is one line."""


_BAD = _Bad()
_LARGEST = 1e300  # beyond it, sums of numbers are not finite


@never_a_traceback
def construct(cls: Callable[..., S], tree: Composed) -> S:
    """Build the spec that a tree describes; `cls` is a spec class or a kind such as ModelSpec.

    Raises:
        SpecError: lists all faults of the tree.
    """
    # Callable, not type[S]: asking for an abstract kind is the point.
    wanted = cast(type[Spec], cls)
    checker = _Checker(tree)
    spec = checker.spec(wanted, tree.data, "")
    if checker.faults:
        raise SpecError(checker.faults, about=tree.name)
    assert isinstance(spec, wanted)
    return cast(S, spec)


def unknown_keys(tree: Composed, module: str, name: str) -> list[Fault]:
    """Return faults for unknown keys and unknown component names, without importing components.

    The full check (`construct`) finds these and all others.

    Args:
        tree: resolved, without faults so far.
        module: module of the spec class that the tree is checked as.
        name: name of that class.
    """
    faults = list(_unknown(tree, tree.data, shape(module, name), "", ""))
    return [Fault(key, message, tree.origin(key)) for key, message in faults]


def _unknown(
    tree: Composed, data: Mapping[str, Any], parent: Shape | None, label: str, key: str
) -> Iterator[tuple[str, str]]:
    if parent is None or key in tree.broken:
        return
    inner = {k: s for k, v in data.items() if (s := _child_shape(parent, k, v)) is not None}
    for name, value in data.items():
        chosen = value.get("type") if isinstance(value, dict) else None
        if (
            name in parent.nested
            and isinstance(chosen, str)
            and (why := registry.absent(chosen))
        ):
            yield dotted(key, f"{name}.type"), why
        if name not in ("type", *parent.keys) and not unset(dotted(key, name), value):
            parts = [f"{part}.{name}" for part, (s, _) in inner.items() if name in s.keys]
            yield dotted(key, name), no_such_key(label, key, name, parts, parent.keys)
    for name, (child_shape, component) in inner.items():
        if child_shape.kind and "type" not in data[name]:
            continue  # the full check lists what it can be
        yield from _unknown(tree, data[name], child_shape, component, dotted(key, name))


def _child_shape(parent: Shape, name: str, value: Any) -> tuple[Shape, str] | None:
    """Return a block's shape and the component it names; None where the shape is unknown."""
    if not isinstance(value, dict):
        return None
    component = value.get("type")
    if isinstance(component, str):
        child = component_shape(component)
        return None if child is None else (child, component)
    child = shape(*parent.nested[name]) if name in parent.nested else None
    return None if child is None else (child, "")


class _Checker:
    def __init__(self, tree: Composed) -> None:
        self.tree = tree
        self.faults: list[Fault] = list(tree.faults)

    def fault(self, key: str, message: str) -> _Bad:
        self.faults.append(Fault(key, message, self.tree.origin(key)))
        return _BAD

    def spec(self, wanted: type[Spec], data: Any, key: str) -> Spec | _Bad:
        if key in self.tree.broken:
            return _BAD
        if isinstance(data, str) and data in names("registry"):
            return self.fault(key, f"is a card; write {{use: {data}}}")
        if isinstance(data, str) and data:
            data = {"type": data}
        if not isinstance(data, dict):
            return self.fault(key, f"is {data!r}, must be a mapping with type: or use:")
        if isinstance(data.get("type"), str):
            data = _expand_short_form(wanted, data)
        chosen = self._choose(wanted, data, key)
        if isinstance(chosen, _Bad):
            return chosen
        cls, variant = chosen
        values = {k: v for k, v in data.items() if k != "type"}
        if variant is not None:
            values["variant"] = variant
        return self._fill(cls, values, key)

    def _choose(
        self, wanted: type[Spec], data: dict[str, Any], key: str
    ) -> tuple[type[Spec], str | None] | _Bad:
        name = data.get("type")
        if name is None:
            # A kind (`LossSpec`): unlike a fixed spec, it needs `type:`.
            kind = bool(getattr(wanted, "__abstractmethods__", None))
            if wanted.component or not hints_of(wanted) or kind:
                return self.fault(key, f"needs type:, one of {_choice_list(wanted)}")
            return wanted, None
        try:
            cls, variant = registry.find(str(name), _choices(wanted))
        except NotFoundError as error:
            also = f" {wanted.also}" if wanted.also else ""
            return self.fault(dotted(key, "type"), f"{error}{also}")
        if not issubclass(cls, wanted):
            words = f"{name} is not a {_kind(wanted)}; choose one of {_choice_list(wanted)}"
            return self.fault(dotted(key, "type"), words)
        return cls, variant

    def _fill(self, cls: type[Spec], values: dict[str, Any], key: str) -> Spec | _Bad:
        hints = hints_of(cls)
        before = len(self.faults)
        label = cls.component or key or "an experiment"
        for name, value in values.items():
            if name not in hints and not unset(dotted(key, name), value):
                parts = list(_nested_keys(hints, values, name))
                words = no_such_key(cls.component or "", key, name, parts, hints)
                self.fault(dotted(key, name), words)
        missing = [n for n in required_fields(cls) if n not in values]
        for name in missing:
            self.fault(dotted(key, name), f"is missing; {label} needs it")
        arguments = {
            name: self.value(hints[name], value, dotted(key, name))
            for name, value in values.items()
            if name in hints
        }
        if any(isinstance(value, _Bad) for value in arguments.values()) or missing:
            self._check_other_ranges(cls, arguments, missing, key)
            return _BAD
        if len(self.faults) > before:
            return _BAD
        try:
            return cls(**arguments)
        except SpecError as error:
            for inner in error.faults:
                self.fault(dotted(key, inner.key), inner.message)
            return _BAD
        except (ArithmeticError, ValueError, TypeError) as error:
            # The component's `__post_init__` failed on a value that it does not expect.
            return self.fault(key, f"{label} refuses these values: {error}")

    def _check_other_ranges(
        self, cls: type[Spec], arguments: dict[str, Any], missing: list[str], key: str
    ) -> None:
        """Report range faults of the valid fields, which a bad field would hide."""
        good = {k: v for k, v in arguments.items() if not isinstance(v, _Bad)}
        probe = object.__new__(cls)
        for f in fields(cls):  # type: ignore[arg-type]  # specs are dataclasses
            object.__setattr__(probe, f.name, good.get(f.name))
        for range_fault in probe._range_faults():
            if range_fault.key in good:
                self.fault(dotted(key, range_fault.key), range_fault.message)

    def value(self, hint: Any, data: Any, key: str) -> Any:
        if key in self.tree.broken:
            return _BAD
        origin, args = get_origin(hint), get_args(hint)
        if origin is Annotated:
            return self.value(args[0], data, key)
        if hint is Any:
            return data
        if hint is type(None):
            return None if data is None else self.fault(key, f"is {data!r}, must be null")
        if origin in (Union, types.UnionType):
            return self._union(args, data, key)
        if origin is Literal:
            if data in args:
                return data
            choices = ", ".join(map(str, args))
            return self.fault(key, f"is {data!r}, must be one of {choices}")
        if origin in (tuple, list):
            return self._sequence(args, data, key)
        if origin in (dict, Mapping):
            if not isinstance(data, dict):
                return self.fault(key, f"is {data!r}, must be a mapping")
            items = {k: self.value(args[1], v, dotted(key, k)) for k, v in data.items()}
            return _BAD if any(isinstance(v, _Bad) for v in items.values()) else items
        if isinstance(hint, type) and issubclass(hint, Spec):
            return self.spec(hint, data, key)
        return self._scalar(hint, data, key)

    def _union(self, args: tuple[Any, ...], data: Any, key: str) -> Any:
        if data is None and type(None) in args:
            return None
        options = [arg for arg in args if arg is not type(None)]
        if len(options) > 1:  # X | tuple[X, ...]: the shape of the data decides
            list_hints, mapping_hints = (
                [o for o in options if get_origin(o) in origins]
                for origins in ((tuple, list), (dict, Mapping))
            )
            rest = [o for o in options if o not in (*list_hints, *mapping_hints)]
            hints = mapping_hints if isinstance(data, dict) else list_hints
            options = hints if isinstance(data, dict | list | tuple) and hints else rest
            options.sort(
                key=lambda o: o is bool and not isinstance(data, bool)
            )  # bool | str
        return self.value(options[0], data, key)

    def _sequence(self, args: tuple[Any, ...], data: Any, key: str) -> Any:
        if not isinstance(data, list | tuple):
            return self.fault(key, f"is {data!r}, must be a list such as [1, 2]")
        if len(args) > 1 and args[1] is not Ellipsis and len(args) != len(data):
            return self.fault(key, f"has {len(data)} items, must have {len(args)}")
        items = tuple(
            self.value(args[0], v, dotted(key, str(i))) for i, v in enumerate(data)
        )
        return _BAD if any(isinstance(v, _Bad) for v in items) else items

    def _scalar(self, hint: Any, data: Any, key: str) -> Any:
        is_number = isinstance(data, int | float) and not isinstance(data, bool)
        if is_number and not -_LARGEST < data < _LARGEST:  # nan is in no range
            return self.fault(key, f"is {data}, must be a finite number")
        if hint is float and is_number:
            return float(data)
        if hint is int and is_number and float(data).is_integer():
            why = refusal(int(data))
            return int(data) if why is None else self.fault(key, why)
        if hint in (bool, str) and isinstance(data, hint):
            return data
        word = {bool: "true or false", int: "a whole number", float: "a number"}
        return self.fault(key, f"is {data!r}, must be {word.get(hint, 'text')}")


def no_such_key(
    component: str, key: str, name: str, nested: Sequence[str], valid: Iterable[str]
) -> str:
    """Return the message for an unknown key, with the nearest valid one.

    Args:
        component: the block's component; empty where it names none.
        key: dotted key of the block; empty for the whole tree.
        name: the unknown key.
        nested: keys of this name in the block's parts, as `part.name`.
        valid: the block's keys.
    """
    places = ", ".join(dotted(key, part) for part in nested)
    nearest_key = nearest(name, [k for k in valid if k != "variant"])
    hint = f" Did you mean {places}?" if places else nearest_key
    if replacement := instead(dotted(key, name)):
        hint = f" Removed: {replacement}."
    return f"{component or key or 'an experiment'} has no key {name!r}.{hint}"


def _expand_short_form(wanted: type[Spec], block: dict[str, Any]) -> dict[str, Any]:
    """Expand a block whose type is a short form: a path, or a name without its room."""
    name = block["type"]
    try:
        if issubclass(registry.find(name)[0], wanted):
            return block
    except NotFoundError:  # `_choose` reports it
        for candidate in registry.in_rooms(name):
            if issubclass(registry.find(candidate)[0], wanted):
                return block | {"type": candidate}
    expanded = wanted.short_form(block)
    return block if expanded is None else dict(expanded)


def _nested_keys(
    hints: Mapping[str, Any], values: Mapping[str, Any], name: str
) -> Iterator[str]:
    """Yield keys of this name in the parts of a block: `epochs` gives `train.epochs`."""
    for part, hint in hints.items():
        child = values.get(part)
        cls: Any = hint
        if isinstance(child, dict) and isinstance(child.get("type"), str):
            with contextlib.suppress(NotFoundError):  # `spec` reports it
                cls = registry.find(child["type"])[0]
        if isinstance(cls, type) and issubclass(cls, Spec) and name in hints_of(cls):
            yield f"{part}.{name}"


def _kind(cls: type[Spec]) -> str:
    return cls.__name__.removesuffix("Spec").removesuffix("Settings").lower()


def _choices(wanted: type[Spec]) -> list[str]:
    """Return component names from the room of the wanted base class."""
    room = wanted.__module__.split(".")[1]
    known = [
        e for e in registry.known_names() if e.startswith((f"{room}/", f"{_kind(wanted)}"))
    ]
    if room == "models":
        known += ["timm/<name>", "torchvision/<name>"]
    return list(dict.fromkeys(known))


def _choice_list(wanted: type[Spec]) -> str:
    """Return choices of exactly this kind: its room may have components of others."""
    known = (c for c in _choices(wanted) if c[-1] == ">" or _is_a(c, wanted))
    return ", ".join(known) or "none"


def _is_a(name: str, wanted: type[Spec]) -> bool:
    try:
        return issubclass(registry.find(name)[0], wanted)
    except Exception:  # a broken plugin: listed, and refused on use
        return True
