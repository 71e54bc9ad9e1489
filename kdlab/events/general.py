"""What anything may say."""

from kdlab.events.event import Event


class Note(Event, line="{message}"):
    """Worth knowing, and nothing to do about it."""

    message: str


class Warned(Event, line="warning: {message}"):
    """Something is not as it was asked for; the message says what to do."""

    message: str


class LogOpened(Event):
    """The first line of a log: the version of its format."""

    format: int
