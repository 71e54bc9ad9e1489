"""Events of any part of kdlab: notes and warnings."""

from kdlab.events.event import Event


class Note(Event, line="{message}"):
    """Information that calls for no action."""

    message: str


class Warned(Event, line="warning: {message}"):
    """A deviation from what was asked for; the message says what to do."""

    message: str


class LogOpened(Event):
    """The first line of a log: the version of its format."""

    format: int
