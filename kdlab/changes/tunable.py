"""A number that can be set while a run goes on: its process says which there are."""

from dataclasses import dataclass

from kdlab.config.spec import Range

_ANY = Range()


@dataclass(frozen=True, slots=True, kw_only=True)
class Tunable:
    """What it is now, and what it may become.

    Attributes:
        name: dotted, as in a config.
        value: at the start, or as it was set last.
        range: of what it may become.
        below: another one that must stay larger; None if it goes with every value of the others.
        free: whether its spec has no rule beside these. If it has, the spec decides.
    """

    name: str
    value: float
    range: Range = _ANY
    below: str | None = None
    free: bool = True
