"""Events and what they led to, as lines of JSON: a pure machine's life, to be replayed.

A machine of kdlab/papers is a function of its events. `Recorded` stands before one and
appends each event with what the machine said to it; `kdlab.testing.replay` feeds the
same events to a fresh machine and compares.
"""

import dataclasses
import json
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

from kdlab.events.event import Event
from kdlab.events.log import parse
from kdlab.papers.edl_dist import (
    fair_shares,
    leases,
    reader_instructions,
    reader_rules,
    teacher_info,
)
from kdlab.papers.edl_dist.in_flight import Part

M = TypeVar("M")

_KINDS: dict[str, type] = {
    kind.__name__: kind
    for kind in (
        *reader_instructions.Instruction.__args__,
        reader_rules.Teacher,
        reader_rules.Rules,
        teacher_info.TeacherInfo,
        leases.Delta,
        fair_shares.Lease,
        fair_shares.Share,
        fair_shares.SharedTeacher,
        fair_shares.Demand,
    )
}


def to_plain(value: object) -> object:
    """JSON that `from_plain` makes equal values of."""
    if isinstance(value, Part):
        return {"is": "Part", "of": list(value)}
    if isinstance(value, Event):
        return {"is": "Event", "of": to_plain(value.facts())}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {
            f.name: to_plain(getattr(value, f.name)) for f in dataclasses.fields(value)
        }
        return {"is": type(value).__name__, "of": fields}
    if isinstance(value, Mapping):
        return {str(k): to_plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain(v) for v in value]
    return value


def from_plain(value: object) -> Any:
    """The inverse of `to_plain`."""
    if isinstance(value, list):
        return [from_plain(v) for v in value]
    if not isinstance(value, dict):
        return value
    if value.keys() == {"is", "of"}:
        if value["is"] == "Part":
            return Part(*value["of"])
        if value["is"] == "Event":
            return parse(value["of"])
        return _KINDS[value["is"]](**from_plain(value["of"]))
    return {k: from_plain(v) for k, v in value.items()}


class Recorded(Generic[M]):
    """A machine whose `on_...` calls are written down; everything else passes through.

    Args:
        machine: of kdlab/papers.
        path: of the journal; lines are appended.
        leave_out: calls that are too many and decide nothing.
        state: a few numbers after each event, for machines that say little.
        about: what a fresh machine needs to begin alike.
    """

    def __init__(
        self,
        machine: M,
        path: Path,
        leave_out: Collection[str] = (),
        state: Callable[[M], object] = lambda machine: None,
        **about: object,
    ) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Each line is written at once, so a killed process keeps its past.
        self._journal = path.open("a", buffering=1, encoding="utf-8")
        self._machine, self._leave_out, self._state = machine, leave_out, state
        self._write(machine=type(machine).__name__, **about)

    def _write(self, **entry: object) -> None:
        self._journal.write(json.dumps(entry) + "\n")

    @property
    def machine(self) -> M:
        """This, which has all that the machine has."""
        return cast(M, self)

    def __getattr__(self, name: str) -> object:
        found = getattr(self._machine, name)
        if name.startswith("on_") and name not in self._leave_out:
            return self._recording(name, found)
        return found

    def _recording(self, name: str, call: Callable[..., object]) -> Callable[..., object]:
        def recorded(*args: object, **kwargs: object) -> object:
            # Taken before the call: what it is given may be changed by it.
            given = {"args": to_plain(args), "kwargs": to_plain(kwargs)}
            told = call(*args, **kwargs)
            self._write(
                on=name, **given, told=to_plain(told), state=self._state(self._machine)
            )
            return told

        return recorded
