"""Base class of events: a frozen struct, a line of JSON, and a line of text.

In a file an event is one object: {"time": seconds since 1970, "event": its kind, ...}. In the
code it is an instance of its class, so that the type checker finds a renamed field; the kind is
the name of the class, in small letters.

A custom kind is one more class, in any package:

    class WeightsPruned(Event, line="{share:.0%} of the weights are 0"):
        share: float

A reader of the log without that class gets an `OtherEvent` with the same facts.
"""

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, ClassVar, Self, dataclass_transform

from msgspec import Struct, field
from msgspec.structs import fields, replace

from kdlab.codec import Tagged, TaggedMeta, snake, to_builtins

BEFORE = {  # earlier names of kinds, as logs may have them
    "chaos": "chaos_caused",
    "communication": "round_closed",
    "generation": "generation_started",
    "generation_begun": "generation_started",
    "labels_kept": "labels_stored",
    "look": "errors_measured",
    "no_teacher": "all_teachers_lost",
    "overview_made": "overview_written",
    "plan": "plan_chosen",
    "steered": "settings_changed",
    "step": "step_logged",
    "taken_back": "settings_reverted",
    "teacher_lied": "labels_disagree",
    "teachers_gone": "all_teachers_lost",
    "trace": "trace_recorded",
    "training_again": "group_recovered",
    "trial_again": "trial_requeued",
    "warning": "warned",
    "went_on": "continued",
    "whole_student": "whole_student_started",
    "worker_lost": "local_model_lost",
}


class _EventMeta(TaggedMeta):
    """Takes the line and the spread of an event class; a kind of None makes a base class."""

    def __new__(
        mcs,
        name: str,
        bases: tuple[type, ...],
        namespace: dict[str, Any],
        kind: str | None = "",
        line: str = "",
        spread: str = "",
    ) -> Any:
        more = {"LINE": line, "SPREAD": spread}
        tag = False if kind is None else kind or snake(name)
        return super().__new__(
            mcs, name, bases, namespace | more, tag=tag, tag_field="event", kw_only=True
        )


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(field,))
class Event(Tagged, metaclass=_EventMeta, kind=None):
    """Something that happened in a run or a sweep.

    A subclass has a `line` of text over its fields where people should see it. An optional field
    that is None is not written. The keys of a `spread` field, a mapping, are written beside the
    other fields.
    """

    LINE: ClassVar[str]
    SPREAD: ClassVar[str]

    time: float = 0.0  # seconds since 1970; the log writes it
    member: str | None = None  # training of the run, such as "served/seed0"
    rank: int | str | None = None  # of a group: its number if not the first, or name

    def facts(self) -> dict[str, Any]:
        """Convert to the object in the file, in the order of the fields."""
        record: dict[str, Any] = {"time": self.time, "event": self.KIND}
        for name, needless in _written(type(self)).items():
            value = getattr(self, name)
            if name == self.SPREAD:
                record |= value
            elif value is not None or not needless:
                record[name] = to_builtins(value) if isinstance(value, Struct) else value
        return record

    def text(self) -> str:
        """Text for terminal, notebook and sweep; empty where people need not see the event."""
        if not self.LINE:
            return ""
        return self.LINE.format_map(_Shown(self.facts()))

    def but(self, **facts: Any) -> Self:
        """Return a copy with these fields replaced."""
        return replace(self, **facts)


@cache
def _written(kind: type[Event]) -> dict[str, bool]:
    """Fields of a kind by name; True where a None is not written."""
    return {f.name: f.default is None for f in fields(kind) if f.name != "time"}


class OtherEvent(Event, kind=None):
    """A line of an unknown kind, or whose facts do not fit its kind.

    A package that is not imported wrote it, or another version of kdlab. `why` has the fault
    where the kind is known.
    """

    name: str
    others: Mapping[str, Any] = field(default_factory=dict)
    why: str = ""

    def text(self) -> str:
        return f"event {self.name!r} ignored: {self.why}" if self.why else ""

    def facts(self) -> dict[str, Any]:
        head = {"member": self.member, "rank": self.rank}
        known = {k: v for k, v in head.items() if v is not None}
        return {"time": self.time, "event": self.name, **known, **self.others}


Emit = Callable[[Event], None]


def discard_event(event: Event) -> None:
    """An `Emit` that drops events."""


class _Shown(dict[str, Any]):
    """Facts for a line of text: None, or a field that an older event lacks, is a dash."""

    def __getitem__(self, key: str) -> Any:
        value = self.get(key)
        return _Dash() if value is None else value


class _Dash:
    def __format__(self, spec: str) -> str:
        return "-"
