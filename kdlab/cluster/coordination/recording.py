"""Events and what they led to, as lines of JSON: a pure machine's life, to be replayed.

A machine of kdlab/papers is a function of its events. `Recorded` stands before one and
appends each event with what the machine said to it; `kdlab.testing.replay` feeds the
same events to a fresh machine and compares.
"""

import json
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Generic, TypeVar, cast

from kdlab.codec import to_builtins

M = TypeVar("M")
FORMAT = 2  # of journals; 1 had another form of what is said


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
        self._write(machine=type(machine).__name__, format=FORMAT, **about)

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
            given = {"args": to_builtins(args), "kwargs": to_builtins(kwargs)}
            told = call(*args, **kwargs)
            self._write(
                on=name, **given, told=to_builtins(told), state=self._state(self._machine)
            )
            return told

        return recorded
