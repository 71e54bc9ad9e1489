"""Numbers that can be set while a run trains; its process publishes them."""

from dataclasses import dataclass

from kdlab.config.spec import Range

_ANY = Range()


@dataclass(frozen=True, slots=True, kw_only=True)
class Tunable:
    """Number that can be set, its value and its range.

    Attributes:
        name: dotted, as in a config.
        value: initial value, or the last one set.
        range: allowed values.
        below: name of another tunable that must stay larger, if any.
        free: True where its spec has no other rule; else the spec decides.
    """

    name: str
    value: float
    range: Range = _ANY
    below: str | None = None
    free: bool = True
