"""Base class of specs: frozen dataclasses that check their values.

Ranges are data, not code (`Annotated[float, Range(gt=0)]`), so that the command line,
the notebook's sliders and a sweep's search space all read the same ones.
"""

import html
import re
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, fields
from types import UnionType
from typing import Annotated, Any, ClassVar, Union, get_args, get_origin, get_type_hints

from kdlab.errors import Fault, SpecError
from kdlab.ranges import NOT_NEGATIVE, POSITIVE, SHARE, Range

__all__ = ["NOT_NEGATIVE", "POSITIVE", "SHARE", "Range", "Spec", "alternatives", "hints_of"]
__all__ += ["field_docs", "plain", "ranges_in", "ranges_of", "required_fields"]

_DOCUMENTED = re.compile(r"^ {4}(\w+(?:, \w+)*): (.*)$")


class Spec:
    """Base of all specs. Subclasses are `@dataclass(frozen=True, kw_only=True)`.

    `component` is the registered name, set by `register`; None for a spec that is a
    fixed part of another one and needs no `type:` in YAML.
    """

    component: ClassVar[str | None] = None
    also: ClassVar[str] = (
        ""  # sentence for the error on an unknown `type`: other short forms
    )

    def __post_init__(self) -> None:
        faults = [*self._range_faults(), *self.cross_faults()]
        if faults:
            raise SpecError(faults, about=self.component or type(self).__name__)

    def _range_faults(self) -> Iterator[Fault]:
        for name, limit in ranges_of(type(self)).items():
            value = getattr(self, name)
            numbers = value if isinstance(value, tuple | list) else [value]
            for number in numbers:
                message = None if number is None else limit.fault(number)
                if message:
                    yield Fault(name, message)

    def cross_faults(self) -> Iterator[Fault]:
        """Faults between fields (for example lt >= ut); ranges are checked already."""
        yield from ()

    @classmethod
    def short_form(cls, block: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """Expand a block whose `type` is no component of this kind, such as a path for data.

        Another example is the name of a model for a teacher.

        Args:
            block: the block; a plain word is its `type`.

        Returns:
            The full block, or None where the block means nothing.
        """
        return None

    def fields(self) -> dict[str, Any]:
        return {f.name: getattr(self, f.name) for f in fields(self)}  # type: ignore[arg-type]  # subclasses are dataclasses

    def _repr_html_(self) -> str:
        """HTML table for notebooks: each value with its range."""
        limits = ranges_of(type(self))
        lines = "".join(
            f"<tr><td><code>{html.escape(name)}</code></td>"
            f"<td>{html.escape(str(plain(value)))}</td>"
            f"<td style='opacity:.6'>{html.escape(str(limits.get(name, '')))}</td></tr>"
            for name, value in self.fields().items()
        )
        title = html.escape(self.component or type(self).__name__)
        return f"<b>{title}</b><table>{lines}</table>"

    def to_dict(self) -> dict[str, Any]:
        """Return the YAML form: plain containers, `type` first where the spec has a name."""
        values = self.fields()
        name = self.component
        if name and name.endswith("/*"):  # a family: the variant is part of the name
            name = name[:-1] + str(values.pop("variant"))
        head = {"type": name} if name else {}
        return head | {k: plain(v) for k, v in values.items()}


def plain(value: Any) -> Any:
    if isinstance(value, Spec):
        return value.to_dict()
    if isinstance(value, tuple | list):
        return [plain(v) for v in value]
    if isinstance(value, Mapping):
        return {k: plain(v) for k, v in value.items()}
    return value


def hints_of(cls: type[Spec]) -> dict[str, Any]:
    """Return annotations by field name, with `Annotated`, without class variables."""
    if not hasattr(cls, "__dataclass_fields__"):  # a kind without fields of its own
        return {}
    hints = get_type_hints(cls, include_extras=True)
    return {f.name: hints[f.name] for f in fields(cls)}  # type: ignore[arg-type]  # a dataclass, see above


def alternatives(hint: Any) -> Iterator[Any]:
    """Yield the types that a hint allows; `Annotated` and unions are unwrapped."""
    if get_origin(hint) is Annotated:
        yield from alternatives(get_args(hint)[0])
    elif get_origin(hint) in (Union, UnionType):
        for option in get_args(hint):
            yield from alternatives(option)
    else:
        yield hint


def ranges_of(cls: type[Spec]) -> dict[str, Range]:
    return {
        name: limit for name, hint in hints_of(cls).items() for limit in ranges_in(hint)
    }


def ranges_in(hint: Any) -> Iterator[Range]:
    """Yield the ranges of a hint, also those inside `X | None` and `tuple[X, ...]`."""
    if get_origin(hint) is Annotated:
        yield from (extra for extra in get_args(hint)[1:] if isinstance(extra, Range))
    for inner in get_args(hint):
        yield from ranges_in(inner)


def required_fields(cls: type[Spec]) -> list[str]:
    return [
        f.name
        for f in fields(cls)  # type: ignore[arg-type]  # subclasses are dataclasses
        if f.default is MISSING and f.default_factory is MISSING
    ]


def field_docs(cls: type[Spec], *, inherited: bool = True) -> dict[str, str]:
    """Return each field's text from the docstrings of a class and of its bases."""
    docs: dict[str, str] = {}
    for base in reversed(cls.__mro__) if inherited else (cls,):
        if base is not object:
            docs |= _documented(base.__doc__ or "")
    return docs


def _documented(text: str) -> dict[str, str]:
    docs: dict[str, str] = {}
    names: list[str] = []
    for line in text.splitlines():
        start = _DOCUMENTED.match(line)
        if start:
            names = start[1].split(", ")
            docs |= dict.fromkeys(names, start[2].strip())
        elif names and line.startswith(" " * 8):
            docs |= {name: f"{docs[name]} {line.strip()}" for name in names}
        else:
            names = []
    return docs
