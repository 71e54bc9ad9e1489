"""A resolved tree to specs, reporting every fault at once with key, line and value."""

import contextlib
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Annotated, Any, Literal, TypeVar, Union, cast, get_args, get_origin

from kdlab.config import registry
from kdlab.config.folders import names, nearest
from kdlab.config.load import Composed, never_a_traceback
from kdlab.config.removed import instead, unset
from kdlab.config.source_index import Shape, component_shape, shape
from kdlab.config.spec import Spec, hints_of, required_fields
from kdlab.config.yaml_text import dotted
from kdlab.errors import Fault, NotFoundError, SpecError

S = TypeVar("S", bound=Spec)


class _Bad:
    """Stands for a value that has a fault already, so that one mistake is one line."""


_BAD = _Bad()
_LARGEST = 1e300  # of a number: beyond it sums are not finite


@never_a_traceback
def construct(cls: Callable[..., S], tree: Composed) -> S:
    """The spec a tree describes; `cls` is a spec class or a kind such as ModelSpec.

    Raises:
        SpecError: with all faults of the whole tree.
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
    """Keys that no spec of this tree has, and names that nothing has: a part of all faults.

    It needs no import of what it looks at.

    Args:
        tree: resolved, without faults so far.
        module: of the class that the whole tree is checked as.
        name: of that class.
    """
    found = list(_unknown(tree, tree.data, shape(module, name), "", ""))
    return [Fault(key, message, tree.origin(key)) for key, message in found]


def _unknown(
    tree: Composed, data: Mapping[str, Any], own: Shape | None, label: str, key: str
) -> Iterator[tuple[str, str]]:
    if own is None or key in tree.broken:
        return
    deeper = {k: of for k, v in data.items() if (of := _inside(own, k, v)) is not None}
    for name, value in data.items():
        chosen = value.get("type") if isinstance(value, dict) else None
        if (
            name in own.nested
            and isinstance(chosen, str)
            and (why := registry.absent(chosen))
        ):
            yield dotted(key, f"{name}.type"), why
        if name not in ("type", *own.keys) and not unset(dotted(key, name), value):
            parts = [
                f"{part}.{name}" for part, (of, _) in deeper.items() if name in of.keys
            ]
            yield dotted(key, name), no_such_key(label, key, name, parts, own.keys)
    for name, (inside, component) in deeper.items():
        if inside.kind and "type" not in data[name]:
            continue  # the full check lists what it can be
        yield from _unknown(tree, data[name], inside, component, dotted(key, name))


def _inside(own: Shape, name: str, value: Any) -> tuple[Shape, str] | None:
    """Shape of a value that is a block, and the component that it names; None if not known."""
    if not isinstance(value, dict):
        return None
    chosen = value.get("type")
    if isinstance(chosen, str):
        found = component_shape(chosen)
        return None if found is None else (found, chosen)
    found = shape(*own.nested[name]) if name in own.nested else None
    return None if found is None else (found, "")


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
            return self.fault(key, f"is a card; it is used by {{use: {data}}}")
        if isinstance(data, str) and data:
            data = {"type": data}
        if not isinstance(data, dict):
            return self.fault(key, f"is {data!r}, must be a mapping with type: or use:")
        if isinstance(data.get("type"), str):
            data = _whole_block(wanted, data)
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
            # A kind (`LossSpec`) rather than a spec one can write down without `type:`.
            kind = bool(getattr(wanted, "__abstractmethods__", None))
            if wanted.component or not hints_of(wanted) or kind:
                return self.fault(key, f"needs type:, one of {_listed(wanted)}")
            return wanted, None
        try:
            cls, variant = registry.find(str(name), _choices(wanted))
        except NotFoundError as error:
            also = f" {wanted.also}" if wanted.also else ""
            return self.fault(dotted(key, "type"), f"{error}{also}")
        if not issubclass(cls, wanted):
            words = f"{name} is not a {_kind(wanted)}; choose one of {_listed(wanted)}"
            return self.fault(dotted(key, "type"), words)
        return cls, variant

    def _fill(self, cls: type[Spec], values: dict[str, Any], key: str) -> Spec | _Bad:
        hints = hints_of(cls)
        before = len(self.faults)
        label = cls.component or key or "an experiment"
        for name, value in values.items():
            if name not in hints and not unset(dotted(key, name), value):
                parts = list(_deeper(hints, values, name))
                words = no_such_key(cls.component or "", key, name, parts, hints)
                self.fault(dotted(key, name), words)
        missing = [n for n in required_fields(cls) if n not in values]
        for name in missing:
            self.fault(dotted(key, name), f"is missing; {label} needs it")
        made = {
            name: self.value(hints[name], value, dotted(key, name))
            for name, value in values.items()
            if name in hints
        }
        if any(isinstance(value, _Bad) for value in made.values()) or missing:
            self._ranges_of_rest(cls, made, missing, key)
            return _BAD
        if len(self.faults) > before:
            return _BAD
        try:
            return cls(**made)
        except SpecError as error:
            for found in error.faults:
                self.fault(dotted(key, found.key), found.message)
            return _BAD
        except (ArithmeticError, ValueError, TypeError) as error:
            # A component's own check that met a value it was not written for.
            return self.fault(key, f"{label} takes none of it: {error}")

    def _ranges_of_rest(
        self, cls: type[Spec], made: dict[str, Any], missing: list[str], key: str
    ) -> None:
        """One bad field must not hide the range faults of its neighbours."""
        good = {k: v for k, v in made.items() if not isinstance(v, _Bad)}
        probe = object.__new__(cls)
        for f in fields(cls):  # type: ignore[arg-type]  # specs are dataclasses
            object.__setattr__(probe, f.name, good.get(f.name))
        for found in probe._range_faults():
            if found.key in good:
                self.fault(dotted(key, found.key), found.message)

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
            known = ", ".join(map(str, args))
            return self.fault(key, f"is {data!r}, must be one of {known}")
        if origin in (tuple, list):
            return self._sequence(args, data, key)
        if origin in (dict, Mapping):
            if not isinstance(data, dict):
                return self.fault(key, f"is {data!r}, must be a mapping")
            made = {k: self.value(args[1], v, dotted(key, k)) for k, v in data.items()}
            return _BAD if any(isinstance(v, _Bad) for v in made.values()) else made
        if isinstance(hint, type) and issubclass(hint, Spec):
            return self.spec(hint, data, key)
        return self._scalar(hint, data, key)

    def _union(self, args: tuple[Any, ...], data: Any, key: str) -> Any:
        if data is None and type(None) in args:
            return None
        options = [arg for arg in args if arg is not type(None)]
        if len(options) > 1:  # X | tuple[X, ...]: the shape of the data decides
            lists, tables = (
                [o for o in options if get_origin(o) in origins]
                for origins in ((tuple, list), (dict, Mapping))
            )
            rest = [o for o in options if o not in (*lists, *tables)]
            found = tables if isinstance(data, dict) else lists
            options = found if isinstance(data, dict | list | tuple) and found else rest
            options.sort(
                key=lambda o: o is bool and not isinstance(data, bool)
            )  # bool | str
        return self.value(options[0], data, key)

    def _sequence(self, args: tuple[Any, ...], data: Any, key: str) -> Any:
        if not isinstance(data, list | tuple):
            return self.fault(key, f"is {data!r}, must be a list such as [1, 2]")
        if len(args) > 1 and args[1] is not Ellipsis and len(args) != len(data):
            return self.fault(key, f"has {len(data)} items, must have {len(args)}")
        made = tuple(
            self.value(args[0], v, dotted(key, str(i))) for i, v in enumerate(data)
        )
        return _BAD if any(isinstance(v, _Bad) for v in made) else made

    def _scalar(self, hint: Any, data: Any, key: str) -> Any:
        is_number = isinstance(data, int | float) and not isinstance(data, bool)
        if is_number and not -_LARGEST < data < _LARGEST:  # nan is in no range
            return self.fault(key, f"is {data}, must be a finite number")
        if hint is float and is_number:
            return float(data)
        if hint is int and is_number and float(data).is_integer():
            return int(data)
        if hint in (bool, str) and isinstance(data, hint):
            return data
        word = {bool: "true or false", int: "a whole number", float: "a number"}
        return self.fault(key, f"is {data!r}, must be {word.get(hint, 'text')}")


def no_such_key(
    component: str, key: str, name: str, parts: Sequence[str], known: Iterable[str]
) -> str:
    """What is said of a key that a block does not have.

    Args:
        component: that the block names; empty where it names none.
        key: of the block.
        name: that it does not have.
        parts: where there is one of this name, further in.
        known: keys that it has.
    """
    there = ", ".join(dotted(key, part) for part in parts)
    near = nearest(name, [k for k in known if k != "variant"])
    hint = f" There is {there}." if there else near
    if gone := instead(dotted(key, name)):
        hint = f" Removed: {gone}."
    return f"{component or key or 'an experiment'} has no key {name!r}.{hint}"


def _whole_block(wanted: type[Spec], given: dict[str, Any]) -> dict[str, Any]:
    """What a block means whose type is a short form: a path, a name without its room."""
    name = given["type"]
    try:
        if issubclass(registry.find(name)[0], wanted):
            return given
    except NotFoundError:  # said where it is looked for again
        for known in registry.in_rooms(name):
            if issubclass(registry.find(known)[0], wanted):
                return given | {"type": known}
    longer = wanted.short_form(given)
    return given if longer is None else dict(longer)


def _deeper(
    hints: Mapping[str, Any], values: Mapping[str, Any], name: str
) -> Iterator[str]:
    """Where a key of this name is, one part further in: `epochs` is in `train`."""
    for part, hint in hints.items():
        given = values.get(part)
        cls: Any = hint
        if isinstance(given, dict) and isinstance(given.get("type"), str):
            with contextlib.suppress(NotFoundError):  # a fault of its own
                cls = registry.find(given["type"])[0]
        if isinstance(cls, type) and issubclass(cls, Spec) and name in hints_of(cls):
            yield f"{part}.{name}"


def _kind(cls: type[Spec]) -> str:
    return cls.__name__.removesuffix("Spec").removesuffix("Settings").lower()


def _choices(wanted: type[Spec]) -> list[str]:
    """Names of the wanted kind: the room its base class lives in."""
    room = wanted.__module__.split(".")[1]
    known = [
        e for e in registry.known_names() if e.startswith((f"{room}/", f"{_kind(wanted)}"))
    ]
    if room == "models":
        known += ["timm/<name>", "torchvision/<name>"]
    return list(dict.fromkeys(known))


def _listed(wanted: type[Spec]) -> str:
    """Choices of this kind alone: `teacher` is in a room with much else."""
    known = (c for c in _choices(wanted) if c[-1] == ">" or _is_a(c, wanted))
    return ", ".join(known) or "none"


def _is_a(name: str, wanted: type[Spec]) -> bool:
    try:
        return issubclass(registry.find(name)[0], wanted)
    except Exception:  # of a plugin: it is listed, and refused where it is used
        return True
