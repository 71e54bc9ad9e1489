"""What happened, as lines of JSON: the truth about a run.

Loops and clusters emit; the terminal, MLflow, notebooks and tests read the same file.
Each line is {"time": seconds since 1970, "event": name, ...}. Lines are only appended,
each in one write, so a reader never sees a mixed line and a killed run keeps its past.
"""

import json
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol


class Emit(Protocol):
    def __call__(self, event: str, /, **data: Any) -> None: ...


class EventLog:
    """Appends events to a file; may be used from several threads and processes."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        self._lock = threading.Lock()
        if os.fstat(
            self._file
        ).st_size:  # go on after a torn last line, on a line of its own
            os.write(self._file, b"\n")

    def emit(self, event: str, /, **data: Any) -> None:
        line = json.dumps({"time": time.time(), "event": event, **data}, default=_plain)
        with self._lock:
            os.write(self._file, (line + "\n").encode())

    def close(self) -> None:
        with self._lock:
            if self._file >= 0:
                os.close(self._file)
                self._file = -1


class MemberLog:
    """The same log, with the member of the run (source and seed) on every line."""

    def __init__(self, log: EventLog, member: str) -> None:
        self.log, self.member = log, member

    def emit(self, event: str, /, **data: Any) -> None:
        self.log.emit(event, member=self.member, **data)


def _plain(value: Any) -> Any:
    return value.item() if hasattr(value, "item") else str(value)


class EventReader:
    """Reads what was appended since the last call; a half-written last line waits."""

    def __init__(self, path: Path, offset: int = 0) -> None:
        self.path, self.offset = path, offset

    def __call__(self) -> list[dict[str, Any]]:
        if not self.path.exists():
            return []
        with self.path.open("rb") as file:
            file.seek(self.offset)
            raw = file.read()
        whole, _, _ = raw.rpartition(b"\n")
        if not whole:
            return []
        self.offset += len(whole) + 1
        return [event for line in whole.split(b"\n") if (event := _parsed(line))]


def _parsed(line: bytes) -> dict[str, Any] | None:
    """None for a line that a full disk or a power cut left torn."""
    try:
        event: dict[str, Any] = json.loads(line)
    except ValueError:
        return None
    return event


def read_all(path: Path) -> list[dict[str, Any]]:
    return EventReader(path)()


def select(path: Path, *events: str) -> Iterator[dict[str, Any]]:
    """Those of these kinds, in order."""
    return (e for e in read_all(path) if e["event"] in events)
