"""The model of the spec builder: fields and choices of specs, read from their classes.

Without widgets. Fields, ranges and texts come from the dataclasses that check configs.
"""

from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Literal, get_args, get_origin

from kdlab.config import Range, Spec, folders, load, registry, yaml_text
from kdlab.config.spec import alternatives, field_docs, hints_of, plain, ranges_of
from kdlab.errors import BadInput, NotFoundError

# "text" is taken as typed; where null is allowed, the field is read as YAML instead.
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
    part: type[Spec] | None = None  # its spec class, maybe abstract
    about: str = ""
    default: object = None  # in YAML form; None without default


@dataclass(frozen=True, slots=True)
class Choice:
    """A card (`use`) or a component (`type`) to choose."""

    how: Literal["use", "type"]
    name: str
    about: str

    def tree(self) -> dict[str, str]:
        return {self.how: self.name}


def fields_of(cls: type[Spec], at: str = "") -> list[FormField]:
    """Return the fields of a spec class in order; `at` is its dotted key."""
    about, limits, defaults = field_docs(cls), ranges_of(cls), _defaults(cls)
    form_fields = []
    for name, hint in hints_of(cls).items():
        if name == "variant":  # of a family: part of the name
            continue
        options = list(alternatives(hint))
        optional = type(None) in options
        first = next(option for option in options if option is not type(None))
        part = first if isinstance(first, type) and issubclass(first, Spec) else None
        choices = get_args(first) if get_origin(first) is Literal else ()
        kind = "yaml" if first is str and optional else _KINDS.get(first, "yaml")
        form_fields.append(
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
    return form_fields


def _defaults(cls: type[Spec]) -> dict[str, object]:
    defaults = {}
    for field in fields(cls):  # type: ignore[arg-type]  # specs are dataclasses
        if field.default is not MISSING:
            defaults[field.name] = plain(field.default)
        elif field.default_factory is not MISSING:
            defaults[field.name] = plain(field.default_factory())
    return defaults


class CardChoices:
    """All cards and components, loaded once."""

    def __init__(self) -> None:
        self._choices: list[tuple[Choice, type[Spec] | None, frozenset[str]]] = []
        for name, path in folders.names("registry").items():
            self._add_card(name, path)
        for name in registry.known_names():
            try:
                cls, _ = registry.find(name)
            except (NotFoundError, ImportError):  # its extra is not installed
                continue
            choice = Choice("type", name, first_sentence(cls))
            self._choices.append((choice, cls, frozenset()))

    def _add_card(self, name: str, path: Path) -> None:
        try:
            tree = load.compose_card(name)
            cls = registry.find(str(tree.data["type"]))[0] if "type" in tree.data else None
        except (BadInput, ImportError):  # its faults are reported where it is used
            return
        if not tree.faults:
            document = yaml_text.read(path, folders.display(path)).data
            about = str(document.get("about", ""))
            self._choices.append((Choice("use", name, about), cls, frozenset(tree.data)))

    def about(self, name: str | None) -> str:
        """Return the description of a card or component; empty for unknown names."""
        return next((c.about for c, *_ in self._choices if c.name == name), "")

    def fitting(self, wanted: type[Spec]) -> list[Choice]:
        """Return the choices for a spec class, cards first."""
        keys = frozenset(hints_of(wanted))
        return [
            choice
            for choice, cls, used in self._choices
            if (issubclass(cls, wanted) if cls is not None else used and used <= keys)
        ]


def first_sentence(cls: type) -> str:
    """Return the first line of a class's docstring."""
    return (cls.__doc__ or "").strip().split("\n", 1)[0]


def part_class(tree: object, wanted: type[Spec]) -> type[Spec] | None:
    """Return the class of a resolved part of an experiment; None where it is null."""
    if not isinstance(tree, dict):  # null, or a list, which is edited as YAML
        return None
    if "type" not in tree:
        return wanted
    return registry.find(str(tree["type"]))[0]
