"""What an event is: a frozen dataclass, a line of JSON, and a line of text.

In a file an event is one object: {"time": seconds since 1970, "event": its kind, ...}. In the
house it is an instance of its class, so that a renamed field is found by the type checker. A
notebook may also read it as the object that stands in the file: `event["step"]`.

A subclass is a frozen dataclass by itself. A kind of one's own is one more, in any package:

    class Pruned(Event, kind="pruned", line="{share:.0%} of the weights are 0"):
        share: float

Whoever reads a log without that class gets an `OtherEvent` with the same facts.
"""

from collections.abc import Callable, KeysView, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar, Self, dataclass_transform

_KINDS: dict[str, type["Event"]] = {}


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(field,))
@dataclass(frozen=True, kw_only=True)
class Event:
    """Something that happened in a run or a sweep.

    A subclass names its `kind` (as it stands in the file) and, where people should see it,
    a `line` of text over its fields. A field that is None and may be is not written. A
    `spread` field is a mapping whose keys stand beside the others in the file.
    """

    KIND: ClassVar[str] = ""
    LINE: ClassVar[str] = ""
    SPREAD: ClassVar[str] = ""

    time: float = 0.0  # seconds since 1970; the log writes it
    member: str | None = None  # of the run, such as "served/seed0"
    rank: int | str | None = None  # of a group: its number if it is not the first, or name

    def __init_subclass__(cls, kind: str = "", line: str = "", spread: str = "") -> None:
        super().__init_subclass__()
        dataclass(frozen=True, kw_only=True)(cls)
        if kind:
            # Of two classes of one kind the newer counts: a notebook cell may run twice.
            cls.KIND, cls.LINE, cls.SPREAD = kind, line, spread
            _KINDS[kind] = cls

    def facts(self) -> dict[str, Any]:
        """What stands in the file, in the order of the fields."""
        found: dict[str, Any] = {"time": self.time, "event": self.KIND}
        for own in fields(self):
            value = getattr(self, own.name)
            if own.name == self.SPREAD:
                found |= value
            elif own.name != "time" and (value is not None or own.default is not None):
                found[own.name] = value
        return found

    def text(self) -> str:
        """One line for terminal, notebook and sweep; empty where nobody needs to see it."""
        if not self.LINE:
            return ""
        return self.LINE.format_map(_Shown(self.facts()))

    def of(self, member: str) -> Self:
        """The same, of this member of the run."""
        return replace(self, member=member)

    # As what stands in the file, for notebooks

    def __getitem__(self, key: str) -> Any:
        return self.facts()[key]

    def __contains__(self, key: object) -> bool:
        return key in self.facts()

    def get(self, key: str, default: Any = None) -> Any:
        return self.facts().get(key, default)

    def keys(self) -> KeysView[str]:
        return self.facts().keys()


class OtherEvent(Event):
    """A line whose kind is not known here, or whose facts are not those of its kind.

    A package that is not imported wrote it, or another version of kdlab; `why` is what is wrong
    where the kind is known.
    """

    name: str
    others: Mapping[str, Any] = field(default_factory=dict)
    why: str = ""

    def text(self) -> str:
        return f"an event {self.name!r} is left out: {self.why}" if self.why else ""

    def facts(self) -> dict[str, Any]:
        head = {"member": self.member, "rank": self.rank}
        known = {k: v for k, v in head.items() if v is not None}
        return {"time": self.time, "event": self.name, **known, **self.others}


Emit = Callable[[Event], None]


def kind_of(name: str) -> type[Event] | None:
    """The class of a kind, by its name in the file; None where it is not known here."""
    return _KINDS.get(name)


def kinds() -> dict[str, type[Event]]:
    """All kinds that are known here, by their name in the file."""
    return dict(sorted(_KINDS.items()))


def unheard(event: Event) -> None:
    """An `Emit` for what nobody needs to know."""


class _Shown(dict[str, Any]):
    """None, and what an older event lacks, is shown as a dash."""

    def __getitem__(self, key: str) -> Any:
        value = self.get(key)
        return _Dash() if value is None else value


class _Dash:
    def __format__(self, spec: str) -> str:
        return "-"
