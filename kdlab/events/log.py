"""The log of a run or a sweep, `events.jsonl`: the only record of its events, as lines of JSON.

Loops and clusters emit; terminal, MLflow, notebooks and tests read the same file. Lines are
only appended, each in one write, so a reader never sees a mixed line and a killed run keeps its
past. The first line has the format of the others.
"""

import json
import os
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar, overload

from kdlab.codec import LARGEST, MessageError, from_builtins, from_json
from kdlab.errors import BadInput
from kdlab.events.event import BEFORE, Event, OtherEvent
from kdlab.events.general import LogOpened
from kdlab.events.runs import MemberDone, MemberStarted

# Types of the fields that all events have
_HEAD: Mapping[str, tuple[type, ...]] = {
    "time": (int, float),
    "member": (str,),
    "rank": (int, str),
}
FORMAT = 2  # of the log; 1 had no first line, and is read as far as its events are known


def newline_if_torn(file: int) -> bytes:
    """Return the newline that an appended line needs first where the last line is torn."""
    size = os.fstat(file).st_size
    return b"\n" if size and os.pread(file, 1, size - 1) != b"\n" else b""


class EventLog:
    """Appends events to a file in an existing folder; for several threads and processes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
        self._lock = threading.Lock()
        if os.fstat(self._file).st_size == 0:
            self.emit(LogOpened(format=FORMAT))
        else:
            os.write(self._file, newline_if_torn(self._file))

    def emit(self, event: Event) -> None:
        facts = event.facts() | {"time": time.time()}
        line = json.dumps(facts, default=_plain)
        with self._lock:
            os.write(self._file, (line + "\n").encode())

    def close(self) -> None:
        with self._lock:
            if self._file >= 0:
                os.close(self._file)
                self._file = -1


class MemberLog:
    """A log that adds the member of the run (source and seed) to every line."""

    def __init__(self, log: EventLog, member: str) -> None:
        self.log, self.member = log, member

    def emit(self, event: Event) -> None:
        self.log.emit(event.but(member=self.member))


def _plain(value: object) -> object:
    return value.item() if hasattr(value, "item") else str(value)


def _current_name(name: str) -> str:
    """Convert an earlier name of a kind (before 0.3), unless a custom kind has that name."""
    return name if name in Event.KINDS else BEFORE.get(name, name)


def parse(facts: Mapping[str, Any], number: int = 0) -> Event:
    """Build the event of a line of the log (its number, for errors) or of a message.

    Raises:
        KeyError: the mapping names no event.
    """
    rest = dict(facts)
    name = _current_name(str(rest.pop("event")))
    kind: type[Event] | None = Event.KINDS.get(name)
    fields, why = rest, ""
    if kind is not None:
        if kind.SPREAD:
            more = {k: v for k, v in rest.items() if k not in kind.__struct_fields__}
            fields = rest | {kind.SPREAD: more}
        try:
            return from_builtins(kind, fields)
        except MessageError as error:
            # A line without a field is of an older kdlab: nothing is wrong with it.
            if "missing required field" not in str(error):
                why = f"{error} (line {number})" if number else str(error)
    head = dict[str, Any]()
    for key, types in _HEAD.items():
        if isinstance(rest.get(key), types) and not isinstance(rest[key], bool):
            head[key] = rest.pop(key)
    return OtherEvent(name=name, others=rest, why=why, **head)


class LineReader:
    """Reads the objects that were appended to a file of JSON lines since the last call.

    A half-written last line waits; a line that a full disk or a power cut left torn is ignored.
    """

    def __init__(self, path: Path, offset: int = 0) -> None:
        self.path, self.offset = path, offset  # the first byte that was not read yet
        self.number = 0  # of the last line that was read
        if offset and path.is_file():
            self.number = path.read_bytes()[:offset].count(b"\n")

    def __call__(self) -> list[dict[str, Any]]:
        return [line for _, line in self.numbered()]

    def numbered(self) -> list[tuple[int, dict[str, Any]]]:
        """New objects with their line numbers in the file, counted from 1."""
        lines: list[tuple[int, dict[str, Any]]] = []
        if not self.path.is_file():  # a pipe would block
            return lines
        with self.path.open("rb") as file:
            file.seek(self.offset)
            while line := file.readline(LARGEST):
                rest = line
                while len(rest) == LARGEST and not rest.endswith(b"\n"):
                    rest = file.readline(LARGEST)  # of a line that is too long
                if not rest.endswith(b"\n"):
                    break  # half written
                self.offset, self.number = file.tell(), self.number + 1
                with suppress(MessageError):
                    if rest is line:
                        lines.append((self.number, from_json(dict[str, Any], line)))
        return lines


class EventReader:
    """Reads the events that were appended since the last call.

    Raises:
        BadInput: another version of kdlab wrote the log.
    """

    def __init__(self, path: Path, offset: int = 0) -> None:
        self.path, self.lines = path, LineReader(path, offset)

    def __call__(self) -> list[Event]:
        events = [parse(line, n) for n, line in self.lines.numbered() if "event" in line]
        for event in events:
            if isinstance(event, LogOpened) and event.format != FORMAT:
                raise BadInput(
                    f"{self.path} has format {event.format}; this version of kdlab reads "
                    f"format {FORMAT}. Read it with the kdlab that wrote it."
                )
        return [event for event in events if not isinstance(event, LogOpened)]


def read_all(path: Path) -> list[Event]:
    return EventReader(path)()


_E = TypeVar("_E", bound=Event)


@overload
def select(path: Path, *kinds: type[_E]) -> Iterator[_E]: ...
@overload
def select(path: Path, *kinds: str) -> Iterator[Event]: ...
def select(path: Path, *kinds: Any) -> Iterator[Any]:
    """Yield the events of these kinds in order: classes, or names, which include damaged ones."""
    wanted = {_current_name(kind) if isinstance(kind, str) else kind for kind in kinds}
    for event in read_all(path):
        name = event.name if isinstance(event, OtherEvent) else event.KIND
        if type(event) in wanted or name in wanted:
            yield event


def training_now(path: Path) -> str | None:
    """Name of the member that trains, by the events of its run; None between two."""
    last = None
    for event in read_all(path):
        if isinstance(event, MemberStarted | MemberDone):
            last = event.member if isinstance(event, MemberStarted) else None
    return last
