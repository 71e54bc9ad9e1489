"""What can be chosen and typed in a spec, read from its classes: the spec builder's model.

No widget here. Fields, ranges and words come from the same dataclasses that check a config.
"""

from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Literal, get_args, get_origin

from kdlab.config import Range, Spec, folders, load, registry, yaml_text
from kdlab.config.spec import alternatives, field_docs, hints_of, plain, ranges_of
from kdlab.errors import BadInput, NotFoundError

# Of a "text" all that is typed is its value; where null is one, too, it is read as YAML.
Editor = Literal["part", "choice", "yes_no", "whole", "number", "text", "yaml"]
_KINDS: dict[object, Editor] = {bool: "yes_no", int: "whole", float: "number", str: "text"}


@dataclass(frozen=True, slots=True)
class FormField:
    """One key of a spec."""

    key: str  # dotted, from the top of the experiment
    kind: Editor
    optional: bool = False  # null is allowed
    limit: Range | None = None
    choices: tuple[object, ...] = ()
    part: type[Spec] | None = None  # that it holds; may be a kind with many components
    about: str = ""
    default: object = None  # in YAML's form; None where it has none


@dataclass(frozen=True, slots=True)
class Choice:
    """A card (`use`) or a component (`type`) that fits somewhere."""

    how: Literal["use", "type"]
    name: str
    about: str

    def tree(self) -> dict[str, str]:
        return {self.how: self.name}


def fields_of(cls: type[Spec], at: str = "") -> list[FormField]:
    """The keys of a spec class in their order; `at` is the key it stands under."""
    about, limits, defaults = field_docs(cls), ranges_of(cls), _defaults(cls)
    found = []
    for name, hint in hints_of(cls).items():
        if name == "variant":  # of a family: part of its name
            continue
        options = list(alternatives(hint))
        optional = type(None) in options
        first = next(option for option in options if option is not type(None))
        part = first if isinstance(first, type) and issubclass(first, Spec) else None
        choices = get_args(first) if get_origin(first) is Literal else ()
        kind = "yaml" if first is str and optional else _KINDS.get(first, "yaml")
        found.append(
            FormField(
                yaml_text.dotted(at, name),
                "part" if part else "choice" if choices else kind,
                optional=optional,
                limit=limits.get(name),
                choices=choices,
                part=part,
                about=about.get(name, ""),
                default=defaults.get(name),
            )
        )
    return found


def _defaults(cls: type[Spec]) -> dict[str, object]:
    found = {}
    for one in fields(cls):  # type: ignore[arg-type]  # specs are dataclasses
        if one.default is not MISSING:
            found[one.name] = plain(one.default)
        elif one.default_factory is not MISSING:
            found[one.name] = plain(one.default_factory())
    return found


class CardChoices:
    """All cards and components, read once."""

    def __init__(self) -> None:
        self._found: list[tuple[Choice, type[Spec] | None, frozenset[str]]] = []
        for name, path in folders.names("registry").items():
            self._add_card(name, path)
        for name in registry.known_names():
            try:
                cls, _ = registry.find(name)
            except (NotFoundError, ImportError):  # an extra that is not installed
                continue
            choice = Choice("type", name, first_sentence(cls))
            self._found.append((choice, cls, frozenset()))

    def _add_card(self, name: str, path: Path) -> None:
        try:
            tree = load.compose_card(name)
            cls = registry.find(str(tree.data["type"]))[0] if "type" in tree.data else None
        except (BadInput, ImportError):  # what is wrong with it is said when it is used
            return
        if not tree.faults:
            document = yaml_text.read(path, folders.display(path)).data
            about = str(document.get("about", "")) if isinstance(document, dict) else ""
            self._found.append((Choice("use", name, about), cls, frozenset(tree.data)))

    def about(self, name: str | None) -> str:
        """What a card or a component says of itself; nothing where there is no such one."""
        return next((c.about for c, *_ in self._found if c.name == name), "")

    def fitting(self, wanted: type[Spec]) -> list[Choice]:
        """What fits where `wanted` is asked for, cards first."""
        keys = frozenset(hints_of(wanted))
        return [
            choice
            for choice, cls, own in self._found
            if (issubclass(cls, wanted) if cls is not None else own and own <= keys)
        ]


def first_sentence(cls: type) -> str:
    """The first sentence of a class's docstring."""
    return (cls.__doc__ or "").strip().split("\n", 1)[0]


def part_class(tree: object, wanted: type[Spec]) -> type[Spec] | None:
    """The class that a resolved part of an experiment is of; None where it is null."""
    if not isinstance(tree, dict):  # null, or several: those are written as YAML
        return None
    if "type" not in tree:
        return wanted
    return registry.find(str(tree["type"]))[0]
