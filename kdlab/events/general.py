"""What anything may say."""

from dataclasses import dataclass

from kdlab.events.event import Event


@dataclass(frozen=True, kw_only=True)
class Note(Event, kind="note", line="{message}"):
    """Worth knowing, and nothing to do about it."""

    message: str


@dataclass(frozen=True, kw_only=True)
class Warned(Event, kind="warning", line="warning: {message}"):
    """Something is not as it was asked for; the message says what to do."""

    message: str


@dataclass(frozen=True, kw_only=True)
class LogOpened(Event, kind="log_opened"):
    """The first line of a log: the version of its format."""

    format: int
